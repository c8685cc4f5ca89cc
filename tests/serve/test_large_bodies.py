"""Bodies within the byte limit that would hold everybody up: refused before they are parsed, or read in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve import place as places
from serve.place import TEXT, FakeEngine, Place, fake

from inlay.serve import bodies, calls, version
from inlay.serve.limits import Limits, Refused

JSON = {"content-type": "application/json"}
MANY = 500_000
CROWDED: dict[str, bytes] = {
    "zeros": b'{"requests":[' + b"0," * MANY + b"0]}",
    "empty objects": b'{"requests":[' + b"{}," * MANY + b"{}]}",
    "nested lists": b'{"requests":[' + b"[[]]," * MANY + b"0]}",
    "empty tokens": b'{"requests":[{"task":"a","tokens":[' + b'"",' * MANY + b'""]}]}',
    "task names": b'{"requests":[{"text":"x","tasks":[' + b",".join(b'"%d"' % i for i in range(MANY)) + b"]}]}",
    "unknown keys": b'{"requests":[{' + b",".join(b'"k%d":1' % i for i in range(MANY)) + b"}]}",
    "keys of the body": b"{" + b",".join(b'"k%d":1' % i for i in range(MANY)) + b"}",
    "wrong tokens": b'{"requests":[' + b",".join([b'{"tokens":[' + b"0," * 15000 + b"0]}"] * 100) + b"]}",
    "escaped texts": b'{"requests":[{"task":"a","tokens":[' + rb'"\\","\"",' * MANY + b'""]}]}',
}


def post(place: Place, content: bytes, path: str = "/v1/predict") -> httpx.Response:
    async def go() -> httpx.Response:
        async with place.client() as client:
            return await client.post(path, content=content, headers=JSON)

    return asyncio.run(go())


@pytest.mark.parametrize("name", CROWDED)
def test_a_crowded_body_is_refused_before_it_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch):
    assert len(CROWDED[name]) < Limits().body
    monkeypatch.setattr(bodies, "from_json", None)
    with pytest.raises(Refused, match="more than 200,000 values") as caught:
        bodies.parse(CROWDED[name], Limits())
    assert caught.value.status == 413


@pytest.mark.parametrize("text", ["a, b, " * 16_000, '{"[a]", ' * 12_000, "\\\\, " * 16_000, '\\"[{,' * 16_000])
def test_separators_in_texts_do_not_count(text: str):
    limits = Limits()
    items = [{"task": "sms", "text": text}] * 20
    content = json.dumps({"requests": items}).encode()
    assert content.count(b",") > limits.values
    found, _ = bodies.parse(content, limits)
    assert [one.text for one in found] == [text] * 20  # type: ignore[union-attr]


def test_values_are_counted_as_a_parser_counts_them():
    limits = Limits(values=20)
    for tokens, refused in ((["a"] * 10, False), (["a"] * 20, True), (["a,b,c"] * 7 + ['"{['], False)):
        content = json.dumps({"requests": [{"task": "a", "tokens": tokens}]}).encode()
        if refused:
            with pytest.raises(Refused):
                bodies.parse(content, limits)
        else:
            assert bodies.parse(content, limits)[0][0].tokens == tokens  # type: ignore[union-attr]


def test_checking_stops_at_the_first_mistake(monkeypatch: pytest.MonkeyPatch):
    """As many mistakes as there is room for: none of them may be listed but the first."""
    errors: list[int] = []
    refused = bodies.refused
    monkeypatch.setattr(bodies, "refused", lambda error: errors.append(error.error_count()) or refused(error))
    items: list[Any] = [
        {"task": "a", "tokens": [0] * 20_000},
        {"tasks": [0] * 20_000, "text": "a"},
        {"task": "a", "text": "b", **{f"k{i}": 1 for i in range(20_000)}},
        {"task": "a", "text": {f"k{i}": 1 for i in range(20_000)}},
    ]
    found, _ = bodies.parse(json.dumps({"requests": items}).encode(), Limits())
    assert [one.kind for one in found] == ["invalid"] * 4  # type: ignore[union-attr]
    assert len(errors) == 3
    assert max(errors) <= 2, "one for each form that a value may have"
    assert "'k0'" in str(found[2])


def test_a_call_of_too_many_tasks_is_refused_before_it_is_planned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "Ask", None)
    content = json.dumps({"requests": [{"tasks": [str(i) for i in range(50_000)], "text": "a"}]}).encode()
    response = post(fake(FakeEngine()), content)
    assert (response.status_code, response.json()["error"]["type"]) == (413, "too_large")


def test_a_long_text_for_very_many_tasks_is_refused():
    place = fake(FakeEngine(names=tuple(f"t{i}" for i in range(300))))
    response = post(place, json.dumps({"requests": [{"tasks": "all", "text": "a" * 90_000}]}).encode())
    assert (response.status_code, "send fewer tasks at once" in response.text) == (413, True)
    assert post(place, json.dumps({"requests": [{"tasks": "all", "text": "a" * 900}]}).encode()).status_code == 200


def test_large_calls_are_worked_on_in_threads(monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, list[bool]] = {}

    def watch(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def watched(*given: Any) -> Any:
            seen.setdefault(name, []).append(threading.current_thread() is threading.main_thread())
            return plain(*given)

        monkeypatch.setattr(owner, name, watched)

    watch(bodies, "parse")
    watch(calls, "_submit")
    watch(calls.Call, "results")
    place = fake(FakeEngine(names=tuple(f"t{i}" for i in range(100))))
    for item, on_the_loop in (
        ({"task": "t1", "text": "hi"}, {"parse": True, "_submit": True, "results": True}),
        ({"tasks": "all", "text": "hi"}, {"parse": True, "_submit": False, "results": False}),
        ({"task": "t1", "text": "hi " * 30_000}, {"parse": False, "_submit": False, "results": False}),
    ):
        seen.clear()
        assert post(place, json.dumps({"requests": [item]}).encode()).status_code == 200
        assert {name: all(found) for name, found in seen.items()} == on_the_loop


def test_a_text_is_encoded_once_for_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, library = places.make_library(tmp_path)
    with places.real(base, library) as place:
        for i in range(5):
            place.service.engine.serve(f"copy{i}", "sms")
        rows: list[Any] = []
        plain = version._rows
        monkeypatch.setattr(version, "_rows", lambda *given: rows.append(plain(*given)) or rows[-1])
        response = post(place, json.dumps({"requests": [{"tasks": "all", "text": TEXT}]}).encode())
        (found,) = response.json()["results"]
        alone = [
            post(place, json.dumps({"task": name, "text": TEXT}).encode()).json()["results"][0]
            for name in ("sms", "ner")
        ]
    answers = {name: answer for name, answer in found["results"].items() if "error" not in answer}
    assert len(answers) == 9, "all but the one that answers questions"
    assert len(rows) - 2 == 2, "once for sms, topic, stars and the copies, once for ner"
    assert [answers[name] for name in ("sms", "ner")] == alone
    assert {**answers["copy3"], "task": "sms"} == answers["sms"]


def test_a_body_that_manages_is_small():
    place = fake(FakeEngine(), keys=places.MANAGED)

    async def go() -> httpx.Response:
        async with place.client() as client:
            return await client.put("/v1/tasks/sms", content=CROWDED["keys of the body"], headers=JSON)

    assert asyncio.run(go()).status_code == 413


# --- one request by itself, and blank ones ------------------------------------------------------------------------


def test_one_request_alone_is_answered_with_a_list_of_one():
    place = fake(FakeEngine())
    response = post(place, b'{"task": "sms", "text": "a", "deadline_ms": 5000}')
    assert (response.status_code, response.json()["results"]) == (200, [{"task": "sms", "text": "a", "label": "ham"}])
    group = post(place, b'{"tasks": "all", "text": "a"}').json()["results"]
    assert [list(one["results"]) for one in group] == [["sms", "topic"]]
    for content, said in (
        (b'{"task": "sms"}', "give one of text"),
        (b'{"task": "sms", "text": 3}', "text: "),
        (b'{"task": "sms", "text": "a", "txt": "b"}', "Did you mean text"),
        (b'{"task": "sms", "text": "a", "requests": []}', "task"),
        (b'{"items": []}', "requests is missing"),
        (b"{}", "requests is missing"),
    ):
        response = post(place, content)
        assert (response.status_code, said in response.json()["error"]["message"]) == (422, True), response.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": ""}, "text is blank"),
        ({"text": " \n\t\u00a0"}, "text is blank"),
        ({"text": "a", "pair": " "}, "pair is blank"),
        ({"question": " ", "context": "a"}, "question is blank"),
        ({"question": "a", "context": ""}, "context is blank"),
        ({"tokens": []}, "tokens has no words"),
        ({"tokens": ["", " "]}, "tokens has no words"),
    ],
)
def test_a_blank_text_is_an_error_of_its_item(given: Any, said: str):
    good = {"task": "sms", "text": "a"}
    response = post(fake(FakeEngine()), json.dumps({"requests": [good, {"task": "sms", **given}, good]}).encode())
    found = response.json()["results"]
    assert (response.status_code, found[1]) == (200, {"error": {"type": "invalid", "message": said}})
    assert found[0] == found[2] == {"task": "sms", "text": "a", "label": "ham"}
