"""How a client cuts a list of requests into calls: as the service can take them, asking again where it is busy."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from typing import Any

import pytest
from serve.place import FakeEngine, fake, listening

from inlay import AsyncClient, Client
from inlay.client import ServiceError
from inlay.serve.engine_types import Busy
from inlay.serve.limits import Limits

REQUESTS = [("sms", f"film {i}") for i in range(20)]


def streamed(url: str, **options: Any) -> list[tuple[int, str]]:
    """The same from both clients."""

    async def waiting() -> list[Any]:
        async with AsyncClient(url, **options) as client:
            return [one async for one in client.stream(REQUESTS)]

    with Client(url, **options) as client:
        found = [(one["index"], one["result"]["text"]) for one in client.stream(REQUESTS)]
    assert [(one["index"], one["result"]["text"]) for one in asyncio.run(waiting())] == found
    return found


@pytest.mark.parametrize("limits", [Limits(items=8), Limits(answers=5), Limits(body=300), Limits(items=1)])
def test_what_is_too_large_for_a_service_is_sent_in_parts(limits: Limits):
    with listening(fake(FakeEngine(), limits=limits)) as url:
        with Client(url) as client:
            assert [one["text"] for one in client.predict(REQUESTS)] == [text for _, text in REQUESTS]
        assert streamed(url) == [(i, text) for i, (_, text) in enumerate(REQUESTS)]


def test_one_request_that_is_too_large_is_an_error():
    with listening(fake(FakeEngine(), limits=Limits(body=300))) as url, Client(url) as client:
        for ask in (lambda: client.predict([("sms", "a" * 400)]), lambda: list(client.stream([("sms", "a" * 400)]))):
            with pytest.raises(ServiceError, match="larger than 300 bytes") as caught:
                ask()
            assert caught.value.status == 413


def test_a_last_part_that_is_too_large_is_halved_at_once():
    requests = [*REQUESTS[:16], ("sms", "a" * 400), ("sms", "b" * 400)]
    with listening(place := fake(FakeEngine(), limits=Limits(body=700))) as url, Client(url, at_once=16) as client:
        assert [answer["text"] for answer in client.predict(requests)] == [text for _, text in requests]
    assert [line["status"] for line in place.lines()] == [200, 413, 200, 200]


def test_a_long_list_is_streamed_in_several_calls():
    engine = FakeEngine()
    with listening(place := fake(engine)) as url:
        assert streamed(url, at_once=8) == [(i, text) for i, (_, text) in enumerate(REQUESTS)]
    assert [line["items"] for line in place.lines()] == [8, 8, 4] * 2


def sometimes(engine: FakeEngine, refusals: list[int]) -> Callable[..., Any]:
    submit = engine.submit

    def asked(ask: Any, deadline: Any = None) -> Any:
        if refusals:
            refusals.pop()
            raise Busy("full", 0.2)
        return submit(ask, deadline)

    return asked


def test_a_stream_comes_back_to_a_busy_service(monkeypatch: pytest.MonkeyPatch):
    engine, refusals, waits = FakeEngine(), [1, 1], []
    engine.submit = sometimes(engine, refusals)  # type: ignore[method-assign]
    monkeypatch.setattr("inlay.client.time", types.SimpleNamespace(sleep=waits.append))
    with listening(fake(engine)) as url:
        with Client(url) as client:
            assert [one["index"] for one in client.stream(REQUESTS[:3])] == [0, 1, 2]
        assert waits == [1.0, 1.0]
        refusals[:] = [1] * 3
        with Client(url, retries=2) as client, pytest.raises(ServiceError) as caught:
            list(client.stream(REQUESTS[:3]))
        assert (caught.value.status, caught.value.kind, len(waits)) == (429, "busy", 4)
