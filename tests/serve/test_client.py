"""The clients: what a host says offline, both ways of waiting, and what they make of a service's troubles."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from serve import place as places
from serve.place import GIVEN, PAIR, TEXT, FakeEngine, fake, listening, until
from serve.test_app import host_takes, same

import inlay
from inlay.client import AsyncClient, Client, ServiceError
from inlay.errors import InlayError
from inlay.serve.engine_types import Busy
from inlay.serve.keys import read_keys


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(URL, a host with the same adapters)."""
    base, library = places.make_library(tmp_path_factory.mktemp("client"))
    host = inlay.Host(base)
    for name in places.TASKS:
        host.load(library.get(name))
    with places.real(base, library) as place, listening_to(place) as url:
        yield url, host


def listening_to(place: places.Place) -> Any:
    """The engine runs already: the server only has to find it so."""
    place.service.engine.start = lambda: None  # type: ignore[method-assign]
    return listening(place)


def both(url: str, what: Callable[[Any], Any], **options: Any) -> Any:
    """What a conversation gives, the same from both clients."""

    async def waiting() -> Any:
        async with AsyncClient(url, **options) as client:
            found = what(client)
            return [one async for one in found] if hasattr(found, "__aiter__") else await found

    with Client(url, **options) as client:
        found = what(client)
        found = found if isinstance(found, list | dict | bool | None) else list(found)
    later = asyncio.run(waiting())
    if not isinstance(found, list) or not found or "index" not in found[0]:
        assert later == found
    return found


def test_answers_are_those_of_a_host(running: Any):
    url, host = running
    requests = [(name, host_takes(given)) for name, given in GIVEN.items()] * 3
    found = both(url, lambda client: client.predict(requests), at_once=4)
    assert [one.pop("version") for one in found] == [1] * len(requests)
    same(found, host.predict(requests))
    as_items = both(url, lambda client: client.predict([{"task": name, **given} for name, given in GIVEN.items()]))
    assert [one["task"] for one in as_items] == list(GIVEN)
    (best,) = both(url, lambda client: client.predict([("sms", TEXT)], top_k=1, threshold=0.0))
    assert len(best["scores"]) == 1


def test_one_answer_or_an_error(running: Any):
    url, host = running
    answer = both(url, lambda client: client.ask("ask", {"question": PAIR[0], "context": PAIR[1]}))
    same({**answer, "version": 0}, {**host.predict([("ask", PAIR)])[0], "version": 0})
    with (
        Client(url) as client,
        pytest.raises(ServiceError, match=r"no task 'smss' is served\. Did you mean sms") as caught,
    ):
        client.ask("smss", TEXT)
    assert caught.value.kind == "unknown_task"


def test_a_bad_request_stands_in_its_place(running: Any):
    bad, good = both(running[0], lambda client: client.predict([("no", TEXT), ("sms", TEXT)]))
    assert (bad["error"]["type"], good["task"]) == ("unknown_task", "sms")


def test_a_stream_has_every_answer_once(running: Any):
    requests = [("sms", TEXT), {"tasks": ["sms", "topic"], "text": TEXT}, ("no", TEXT)]
    lines = both(running[0], lambda client: client.stream(requests))
    assert sorted((one["index"], one.get("task", "")) for one in lines) == [(0, ""), (1, "sms"), (1, "topic"), (2, "")]


def test_tasks_are_managed(running: Any):
    url, _ = running
    assert both(url, lambda client: client.ready()) is True
    assert both(url, lambda client: client.serve("copy", "sms@1"))["ref"] == "sms@1"
    assert "copy" in {card["name"] for card in both(url, lambda client: client.tasks())}
    with Client(url) as client:
        client.withdraw("copy")
        with pytest.raises(ServiceError, match="no task 'copy' is served") as caught:
            client.withdraw("copy")
        assert caught.value.status == 404
        with pytest.raises(ServiceError):
            client.serve("a/b", "sms")


@pytest.mark.parametrize("given", [3, None, ("a",), ("a", "b", "c"), {1, 2}, float("nan")])
def test_what_cannot_be_asked_is_refused_before_it_is_sent(given: Any):
    with Client("http://127.0.0.1:9") as client, pytest.raises(InlayError, match=r"a request is|cannot be sent"):
        client.predict([("sms", given)])


def test_a_url_that_is_none_and_a_service_that_is_not_there():
    for url in ("localhost:8000", "http://localhost:port", "http://localhost:70000", "http://"):
        with pytest.raises(InlayError, match="is not the URL of a service"):
            Client(url)
    for url in ("http://127.0.0.1:9", "http://x..y"):
        with Client(url) as client, pytest.raises(ServiceError, match="cannot be reached") as caught:
            client.tasks()
        assert caught.value.status is None


@pytest.mark.parametrize("key", ["a-key", "schlüssel"])
def test_keys_come_from_the_environment(key: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "keys").write_text(f"web predict {key}", encoding="utf-8")
    with listening(fake(FakeEngine(), keys=read_keys(tmp_path / "keys"))) as url:
        with Client(url) as client, pytest.raises(ServiceError, match="a valid key is needed"):
            client.tasks()
        assert len(both(url, lambda client: client.tasks(), key=key)) == 2
        monkeypatch.setenv("INLAY_KEY", key)
        assert len(both(url, lambda client: client.tasks())) == 2


def test_a_busy_service_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    engine, refusals, waits = FakeEngine(), [1, 1], []
    submit = engine.submit

    def sometimes(ask: Any, deadline: Any = None) -> Any:
        if refusals:
            refusals.pop()
            raise Busy("full", 0.2)
        return submit(ask, deadline)

    engine.submit = sometimes  # type: ignore[method-assign]
    with listening(fake(engine)) as url:
        with Client(url) as client, monkeypatch.context() as patch:
            patch.setattr("inlay.client.time", types.SimpleNamespace(sleep=waits.append))
            assert client.ask("sms", "a")["label"] == "ham"
            assert waits == [1.0, 1.0]
        refusals[:] = [1]
        with Client(url, retries=0) as client, pytest.raises(ServiceError) as caught:
            client.ask("sms", "a")
        assert (caught.value.status, caught.value.kind) == (429, "busy")


def test_a_stream_that_is_cut_off_is_noticed():
    class Cuts(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"index": 0, "result": {}}\n')

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Cuts) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{server.server_port}") as client,
            pytest.raises(ServiceError, match="the connection was lost before all answers had arrived"),
        ):
            list(client.stream([("sms", "a")]))
        thread.join()


def test_the_time_for_an_answer_can_be_bounded():
    engine = FakeEngine(answer=None)
    with listening(fake(engine)) as url, Client(url) as client:
        with pytest.raises(ServiceError, match="the deadline of this call has passed") as caught:
            client.predict([("sms", "a")], deadline_ms=50)
        assert (caught.value.status, caught.value.kind) == (504, "late")
        until(lambda: engine.asked[0][1].cancelled())


def test_httpx_is_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(InlayError, match="needs httpx"):
        Client("http://127.0.0.1:9")
    assert httpx is not None
