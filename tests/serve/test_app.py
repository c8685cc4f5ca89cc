"""The service by its routes: answers as offline, one bad item alone, limits, deadlines, logs and measurements."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve import place as places
from serve.place import GIVEN, PAIR, SMALL, TEXT, FakeEngine, Place, fake, listening, until

import inlay
from inlay.errors import InlayError
from inlay.library.library import Library
from inlay.serve.keys import Keys
from inlay.serve.limits import Limits
from inlay.serve.watch import Choices


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Library]:
    return places.make_library(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def offline(made: tuple[str, Library]) -> inlay.Host:
    host = inlay.Host(made[0])
    for name in places.TASKS:
        host.load(made[1].get(name))
    return host


@pytest.fixture
def place(made: tuple[str, Library], tmp_path: Path) -> Any:
    with places.real(*made, choices=Choices(tmp_path / "choices.json")) as one:
        yield one


def talk(place: Place, what: Callable[[httpx.AsyncClient], Awaitable[Any]], **how: Any) -> Any:
    async def go() -> Any:
        async with place.client(**how) as client:
            return await what(client)

    return asyncio.run(go())


def post(place: Place, body: Any, path: str = "/v1/predict", headers: Any = None, **how: Any) -> httpx.Response:
    kind = {"content-type": "application/json"} | (headers or {})
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return talk(place, lambda client: client.post(path, content=content, headers=kind), **how)  # type: ignore[no-any-return]


def get(place: Place, path: str, **how: Any) -> httpx.Response:
    headers = how.pop("headers", None)
    return talk(place, lambda client: client.get(path, headers=headers), **how)  # type: ignore[no-any-return]


def results(place: Place, *items: Any, **more: Any) -> Any:
    response = post(place, {"requests": list(items), **more})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def same(found: Any, expected: Any) -> None:
    """Equal, numbers within 1e-4."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


def host_takes(given: Any) -> Any:
    return given["tokens"] if "tokens" in given else tuple(given.values()) if len(given) == 2 else given["text"]


# --- answers ------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_a_host_in_order(place: Place, offline: inlay.Host):
    names = [*GIVEN, *sorted(GIVEN)]
    found = results(place, *({"task": name, **GIVEN[name]} for name in names))
    expected = offline.predict([(name, host_takes(GIVEN[name])) for name in names])
    assert [one.pop("version") for one in found] == [1] * len(names)
    same(found, expected)
    with pytest.raises(AssertionError):  # the comparison can fail
        same(found, offline.predict([(name, host_takes(GIVEN[name])) for name in reversed(names)]))


def test_each_item_says_how_it_wants_its_answer(place: Place, offline: inlay.Host):
    item = {"task": "sms", "text": TEXT}
    one, unsure, raw = results(place, {**item, "top_k": 1}, {**item, "threshold": 1.0}, {**item, "raw": True})
    assert list(one["scores"]) == [one["label"]]
    assert unsure["label"] is None
    (expected,) = offline.predict([("sms", TEXT)], raw=True)
    assert raw["score"] == pytest.approx(expected["score"], abs=1e-4)
    assert raw["score"] != pytest.approx(one["score"], abs=1e-3)


def test_a_question_may_also_be_a_text_with_its_pair(place: Place):
    first, second = results(place, {"task": "ask", **GIVEN["ask"]}, {"task": "ask", "text": PAIR[0], "pair": PAIR[1]})
    assert first == second


def test_one_text_for_several_tasks_is_answered_in_a_group(place: Place):
    several, every, alone = results(
        place,
        {"tasks": ["topic", "sms", "topic"], "text": TEXT},
        {"tasks": "all", "text": TEXT},
        {"task": "sms", "text": TEXT},
    )
    assert list(several["results"]) == ["topic", "sms"]
    same(several["results"]["sms"], alone)
    assert set(every["results"]) == set(places.TASKS)
    assert every["results"]["ask"]["error"]["type"] == "refused"
    same(every["results"]["topic"], several["results"]["topic"])


def test_a_threshold_for_several_tasks_is_for_those_with_scores(place: Place):
    both, plain = results(
        place,
        {"tasks": ["sms", "stars"], "text": TEXT, "threshold": 1.0},
        {"task": "stars", "text": TEXT},
    )
    assert both["results"]["sms"]["label"] is None
    same(both["results"]["stars"], plain)
    (alone,) = results(place, {"tasks": ["stars"], "text": TEXT, "threshold": 1.0})
    assert "needs scores" in alone["results"]["stars"]["error"]["message"]


BAD: list[tuple[Any, str]] = [
    ({"task": "nope", "text": TEXT}, "unknown_task"),
    ({"task": "sms@7", "text": TEXT}, "unknown_task"),
    ({"task": "../sms", "text": TEXT}, "unknown_task"),
    ({"task": "sms"}, "invalid"),
    ({"text": TEXT}, "invalid"),
    ({"task": "sms", "tasks": ["sms"], "text": TEXT}, "invalid"),
    ({"task": "sms", "text": TEXT, "tokens": ["a"]}, "invalid"),
    ({"task": "sms", "text": TEXT, "context": "a"}, "invalid"),
    ({"task": "ask", "question": "who ?"}, "invalid"),
    ({"task": "sms", "tokens": ["a"], "pair": "b"}, "invalid"),
    ({"task": "sms", "text": 3}, "invalid"),
    ({"task": "sms", "text": TEXT, "top_k": 0}, "invalid"),
    ({"task": "sms", "text": TEXT, "top_k": True}, "invalid"),
    ({"task": "sms", "text": TEXT, "threshold": "0.5"}, "invalid"),
    ({"task": "sms", "text": TEXT, "threshold": 1.5}, "invalid"),
    ({"task": "sms", "text": TEXT, "threshold": "uncertainty=much"}, "invalid"),
    ({"task": "sms", "text": TEXT, "threshold": "uncertainty=1e-3"}, "refused"),  # it is one adapter
    ({"task": "stars", "text": TEXT, "threshold": 0.01}, "refused"),  # it has no score
    ({"task": "sms", "text": TEXT, "long": "what"}, "invalid"),
    ({"task": "sms", "text": TEXT, "more": 1}, "invalid"),
    ({"task": "ask", "text": TEXT}, "refused"),
    ({"task": "sms", "text": "a " * 60_000}, "too_long"),
    ("sms", "invalid"),
    (None, "invalid"),
    ([], "invalid"),
]


def test_a_bad_item_fails_alone(place: Place, offline: inlay.Host):
    good = {"task": "sms", "text": TEXT}
    found = results(place, good, *(item for one, _ in BAD for item in (one, good)))
    assert [one["error"]["type"] for one in found[1::2]] == [kind for _, kind in BAD]
    assert all(one["error"]["message"] for one in found[1::2])
    (expected,) = offline.predict([("sms", TEXT)])
    for answer in found[0::2]:
        same(answer, {**expected, "version": 1})


def test_a_field_of_two_kinds_says_what_both_are(place: Place):
    item = {"task": "sms", "text": TEXT}
    wrong = [*({**item, "threshold": value} for value in ("uncertainty=-1", {"uncertainty": 0.1}, 1.5)), {"tasks": "x"}]
    found = [one["error"]["message"] for one in results(place, *wrong, {"tasks": [1], "text": TEXT})]
    assert found[:3] == ['threshold: expected a score between 0 and 1, or "uncertainty=0.1"'] * 3
    assert found[3:] == ['tasks: expected a list of names, or "all"'] * 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"requests": "\xff"}', 400),
        (b'{"requests": [{"task": "sms", "text": "\\ud800"}]}', 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b'{"requests": []}', 422),
        (b'{"requests": {}}', 422),
        (b'{"items": []}', 422),
        (b'{"requests": [{}], "deadline_ms": 0}', 422),
        (b'{"requests": [{}], "deadline_ms": 1e999}', 422),
    ],
)
def test_a_body_of_no_use_fails_the_call(place: Place, body: bytes, status: int):
    response = post(place, body)
    assert (response.status_code, set(response.json()["error"])) == (status, {"type", "message"}), response.text


def test_a_stream_has_the_same_answers_a_line_each(place: Place):
    items = [{"task": "sms", "text": TEXT}, {"tasks": ["topic", "nope"], "text": TEXT}, {"task": 1}]
    whole = results(place, *items)
    response = post(place, {"requests": items}, "/v1/predict/stream")
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    assert (last["done"], last["answers"]) == (True, 4)
    assert last["batch"] in (1, 2)  # both in one batch, unless the first began before the second came
    found: dict[Any, Any] = {(line["index"], line.get("task")): line["result"] for line in lines}
    same(found[0, None], whole[0])
    same(found[1, "topic"], whole[1]["results"]["topic"])
    assert found[1, "nope"] == whole[1]["results"]["nope"]
    assert found[2, None] == whole[2]


def test_a_stream_sends_an_answer_before_the_next_is_there():
    engine = FakeEngine(answer=None)
    with listening(fake(engine)) as url, httpx.Client(base_url=url) as client:
        body = {"requests": [{"task": "sms", "text": "a"}, {"task": "sms", "text": "b"}]}
        with client.stream("POST", "/v1/predict/stream", json=body) as response:
            lines = response.iter_lines()
            engine.asked[1][1].set_result({"label": "second"})
            assert json.loads(next(lines)) == {"index": 1, "result": {"label": "second"}}
            engine.asked[0][1].set_result({"label": "first"})
            assert [json.loads(line).get("index") for line in lines] == [0, None]


# --- tasks --------------------------------------------------------------------------------------------------------


def test_tasks_are_listed_put_and_taken(place: Place, made: tuple[str, Library]):
    cards = {card["name"]: card for card in get(place, "/v1/tasks").json()["tasks"]}
    assert set(cards) == set(places.TASKS)
    assert (cards["sms"]["version"], cards["sms"]["method"], cards["sms"]["labels"]) == (1, "lora", ["ham", "spam"])
    assert [cards[name]["pairs"] for name in ("sms", "ask")] == [False, True]

    def put(name: str, body: Any) -> httpx.Response:
        return talk(place, lambda client: client.put(f"/v1/tasks/{name}", json=body))  # type: ignore[no-any-return]

    assert put("copy", {"ref": "sms@1"}).json()["ref"] == "sms@1"
    copy, sms = results(place, {"task": "copy", "text": TEXT}, {"task": "sms", "text": TEXT})
    assert {**copy, "task": "sms"} == sms
    for name, body, status in [
        ("copy", {"ref": "sms@9"}, 404),
        ("copy", {"ref": "no"}, 404),
        ("copy", {"ref": 3}, 422),
        ("copy", {"version": 3}, 422),
        (".x", {"ref": "sms"}, 404),
    ]:
        assert put(name, body).status_code == status, body
    assert [talk(place, lambda c: c.delete("/v1/tasks/copy")).status_code for _ in range(2)] == [200, 404]
    (gone,) = results(place, {"task": "copy", "text": TEXT})
    assert gone["error"]["type"] == "unknown_task"


def test_a_damaged_version_is_refused_and_the_old_one_stays(tmp_path: Path):
    base, library = places.make_library(tmp_path)
    with places.real(base, library) as place:
        version = places.add(inlay.Host(base), library, "sms", 77, base)
        blob = tmp_path / "library/blobs" / f"{library.find(f'sms@{version}').sha256}.safetensors"
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        response = talk(place, lambda client: client.put("/v1/tasks/sms"))
        assert (response.status_code, response.json()["error"]["type"]) == (409, "damaged")
        (answer,) = results(place, {"task": "sms", "text": TEXT})
        assert answer["version"] == 1
        place.service.catalogue.choices.path = blob / "in a file"
        response = talk(place, lambda client: client.delete("/v1/tasks/sms"))
        assert (response.status_code, response.json()["error"]["type"]) == (503, "refused")


# --- limits, deadlines, going away --------------------------------------------------------------------------------


def test_a_call_that_asks_for_too_much_is_refused():
    place = fake(FakeEngine(), limits=SMALL)
    item = {"task": "sms", "text": "a"}
    assert post(place, {"requests": [item] * 8}).status_code == 200
    assert post(place, {"requests": [item] * 9}).status_code == 413
    assert post(place, {"requests": [{"tasks": "all", "text": "a"}] * 6}).status_code == 200
    assert post(place, {"requests": [{"tasks": "all", "text": "a"}] * 7}).status_code == 413
    assert post(place, {"requests": [item], "x": "a" * 20_000}).status_code == 413
    long, short = results(place, {"task": "sms", "text": "a" * 201}, {"task": "sms", "text": "a" * 200})
    assert long["error"]["type"] == "too_long"
    assert "error" not in short

    async def in_pieces() -> Any:
        for _ in range(30):
            yield b" " * 1000

    assert talk(place, lambda c: c.post("/v1/predict", content=in_pieces(), headers=JSON)).status_code == 413
    assert post(place, {"requests": [item]}, headers={"content-type": "text/plain"}).status_code == 415


JSON = {"content-type": "application/json"}


def test_a_full_queue_refuses_the_whole_call_and_says_when_to_come_back():
    engine = FakeEngine(answer=None, room=2)
    response = post(fake(engine), {"requests": [{"task": "sms", "text": "a"}] * 3})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"]["type"] == "busy"
    assert [pending.cancelled() for _, pending, _ in engine.asked] == [True, True]


@pytest.mark.parametrize("way", ["header", "body", "limit"])
def test_a_deadline_that_passes_is_504_and_gives_up_the_asks(way: str):
    engine = FakeEngine(answer=None)
    place = fake(engine, limits=Limits(seconds=0.1 if way == "limit" else 30))
    body: Any = {"requests": [{"task": "sms", "text": "a"}]} | ({"deadline_ms": 100} if way == "body" else {})
    began = time.monotonic()
    response = post(place, body, headers={"x-deadline-ms": "100"} if way == "header" else None)
    assert (response.status_code, response.json()["error"]["type"]) == (504, "late")
    assert engine.asked[0][1].cancelled()
    assert engine.asked[0][2] == pytest.approx(began + 0.1, abs=0.09)


def test_what_was_answered_in_time_is_not_lost():
    engine = FakeEngine(answer=None)
    submit = engine.submit

    def first_only(ask: Any, deadline: Any = None) -> Future[Any]:
        pending = submit(ask, deadline)
        if ask.given == "first":
            pending.set_result({"label": "ham"})
        return pending

    engine.submit = first_only  # type: ignore[assignment]
    items = [{"task": "sms", "text": text} for text in ("first", "second")]
    first, second = results(fake(engine), *items, deadline_ms=50)
    assert (first, second["error"]["type"]) == ({"label": "ham"}, "late")


@pytest.mark.parametrize("said", ["x", "-1", "0", "nan", ""])
def test_a_deadline_that_is_none_is_refused(said: str):
    response = post(fake(FakeEngine()), {"requests": [{"task": "sms", "text": "a"}]}, headers={"x-deadline-ms": said})
    assert response.status_code == 422


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict/stream"])
def test_asks_of_a_client_that_goes_are_given_up(path: str):
    engine = FakeEngine(answer=None)
    with listening(fake(engine)) as url:
        body = json.dumps({"requests": [{"task": "sms", "text": "a"}] * 2}).encode()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            until(lambda: len(engine.asked) == 2)
            assert not any(pending.done() for _, pending, _ in engine.asked)
        until(lambda: all(pending.cancelled() for _, pending, _ in engine.asked))


def test_a_service_that_is_not_ready_says_so():
    place = fake(FakeEngine(ready=False))
    for path in ("/ready", "/v1/predict"):
        response = get(place, path) if path == "/ready" else post(place, {"requests": [{"task": "sms", "text": "a"}]})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert get(place, "/health").status_code == 200
    place.service.engine.start()
    assert get(place, "/ready").json() == {"status": "ready"}


# --- what goes wrong here -----------------------------------------------------------------------------------------


def test_a_bug_in_answering_is_500_for_a_call_and_an_error_for_an_item():
    def answer(ask: Any) -> Any:
        return {"label": "ham"} if ask.given == "good" else 1 / 0

    place = fake(FakeEngine(answer=answer))
    good, bad = results(place, {"task": "sms", "text": "good"}, {"task": "sms", "text": "bad"})
    assert (good, bad["error"]["type"]) == ({"label": "ham"}, "internal")
    response = post(place, {"requests": [{"task": "sms", "text": "bad"}]})
    assert (response.status_code, "division" in response.text) == (500, False)
    assert ["division" in line["error"] for line in place.lines() if line["event"] == "bug"] == [True, True]


def test_a_bug_in_a_route_is_500_with_an_id_that_the_log_has():
    place = fake(FakeEngine())
    place.service.engine.tasks = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    response = get(place, "/v1/tasks")
    assert response.status_code == 500
    id = response.headers["x-request-id"]
    assert id in response.json()["error"]["message"]
    assert [line["event"] for line in place.lines() if line["id"] == id] == ["bug", "request"]
    assert "ZeroDivisionError" in place.lines()[0]["error"]


def test_numbers_that_are_not_finite_become_null():
    place = fake(FakeEngine(answer=lambda ask: {"value": float("nan"), "scores": {"a": float("inf")}, "spans": [1.5]}))
    assert results(place, {"task": "sms", "text": "a"}) == [{"value": None, "scores": {"a": None}, "spans": [1.5]}]


def test_an_error_of_the_engine_names_itself():
    def answer(ask: Any) -> Any:
        raise InlayError("this text is too odd")

    (found,) = results(fake(FakeEngine(answer=answer)), {"task": "sms", "text": "a"})
    assert found == {"error": {"type": "refused", "message": "this text is too odd"}}


# --- logs, measurements, the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [False, True])
def test_a_line_for_every_request_with_texts_only_if_asked(texts: bool):
    place = fake(FakeEngine(), log_texts=texts)
    headers = {"x-request-id": "mine-1"}
    response = post(
        place, {"requests": [{"tasks": "all", "text": "secret"}, {"task": "no", "text": "x"}]}, headers=headers
    )
    assert response.headers["x-request-id"] == "mine-1"
    (line,) = place.lines()
    assert line["ms"] >= 0
    expected = {"event": "request", "id": "mine-1", "path": "/v1/predict", "status": 200, "items": 2}
    assert line.items() >= expected.items()
    assert line["tasks"] == ["sms", "topic", "no"]
    assert line.get("texts") == (["secret", "secret", "x"] if texts else None)
    assert ("secret" in place.log.getvalue()) == texts


def test_an_id_that_could_forge_a_log_is_not_taken():
    place = fake(FakeEngine())
    response = get(place, "/v1/tasks", headers={"x-request-id": 'a"} {"b'})
    assert re.fullmatch("[0-9a-f]{16}", response.headers["x-request-id"])


def test_measurements_count_what_was_answered(place: Place):
    found = results(place, *[{"task": "sms", "text": f"a film {i}"} for i in range(5)], {"task": "topic", "text": TEXT})
    post(place, b"{")
    until(lambda: place.service.engine.counts().answers == 6)
    until(lambda: place.service.engine.counts().resident == 5)  # those that nobody has asked for are read ahead
    page = get(place, "/metrics").text
    samples = {
        (s.name, *sorted(s.labels.items())): s.value for f in text_string_to_metric_families(page) for s in f.samples
    }
    sms, calls = ("task", "sms"), ("path", "/v1/predict")
    assert samples["inlay_answers_total", sms] == 5
    assert samples["inlay_answer_seconds_count", sms] == 5
    for label in {one["label"] for one in found[:5]}:
        times = sum(one["label"] == label for one in found[:5])
        assert samples["inlay_labels_total", ("label", label), sms] == times
    assert samples["inlay_confidence_count", sms] == 5
    assert samples["inlay_confidence_sum", sms] == pytest.approx(sum(one["score"] for one in found[:5]), abs=1e-3)
    assert samples["inlay_calls_total", calls, ("status", "200")] == 1
    assert samples["inlay_calls_total", calls, ("status", "400")] == 1
    assert samples["inlay_batch_rows_sum",] == 6
    assert samples["inlay_paging_hits_total",] + samples["inlay_paging_misses_total",] == 6
    assert samples["inlay_tasks", ("state", "bank")] == 5


def test_what_a_caller_makes_up_is_no_label_of_a_measurement(place: Place):
    post(place, {"requests": [{"task": "made-up", "text": "a"}]})
    get(place, "/made-up")
    assert "made-up" not in get(place, "/metrics").text


def test_every_answer_keeps_browsers_safe(place: Place):
    for path in ("/", "/v1/tasks", "/nothing"):
        headers = get(place, path, headers={"origin": "http://evil.example"}).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]
    assert "unsafe" not in headers["content-security-policy"]


def test_pages_of_a_named_origin_may_ask():
    place = fake(FakeEngine(), cors=("https://app.example",))
    for origin, allowed in (("https://app.example", True), ("https://evil.example", False)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        response = talk(place, lambda c, asked=asked: c.options("/v1/predict", headers=asked))
        assert (response.headers.get("access-control-allow-origin") == origin) == allowed


def test_the_openapi_document_names_the_bodies(place: Place):
    document = get(place, "/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/predict", "/v1/predict/stream", "/v1/tasks", "/v1/tasks/{name}", "/health", "/ready", "/metrics"
    }  # fmt: skip
    body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"anyOf": [{"$ref": f"#/components/schemas/{one}"} for one in ("Body", "Alone")]}
    assert {"Body", "Alone", "Item", "Wanted", "Answers", "Failure"} <= set(document["components"]["schemas"])
    assert all(ref in document["components"]["schemas"] for ref in re.findall(r"schemas/(\w+)", json.dumps(document)))


def test_operations_that_take_a_key_name_how(place: Place):
    document = get(place, "/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"].items() >= {"type": "http", "scheme": "bearer"}.items()
    assert schemes["header"].items() >= {"type": "apiKey", "in": "header", "name": "X-API-Key"}.items()
    takes = {path: [one.get("security") for one in own.values()] for path, own in document["paths"].items()}
    either: list[Any] = [{"bearer": []}, {"header": []}]
    assert all(one == [*either, {}] for path in takes if path[:3] in ("/v1", "/me") for one in takes[path])
    assert [takes[path] for path in ("/health", "/ready")] == [[None], [None]]
    locked = get(fake(FakeEngine(), keys=Keys([])), "/openapi.json").json()
    assert locked["paths"]["/v1/predict"]["post"]["security"] == either


def test_a_page_about_the_interface_needs_no_internet(place: Place):
    page = get(place, "/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for file in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert get(place, f"/{file}").status_code == 200, file
    assert "://" not in page.text
    assert get(place, "/redoc").status_code == 404
