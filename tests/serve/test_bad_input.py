"""Whatever comes in, only 4xx goes out, the service stays up, and its memory stays flat.

Mutated bodies go straight into the application, many at a time, with the real engine behind it (ten thousand of them
in the full tier); clients that are slow, broken or endless come over a real socket; and schemathesis makes up what it
likes of the document.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from serve import place as places
from serve.place import GIVEN, SMALL, FakeEngine, Place, fake, listening, until

from inlay.serve.keys import SCOPES, Key, Keys
from inlay.serve.limits import Limits
from inlay.serve.process import take_port
from inlay.serve.server import Server

AT_ONCE = 100
MORE = 24 << 20
"""Bytes that the process may grow by, while its allocator settles: a leak of 3 kB a call would be more."""
LIMITS = Limits(body=100_000, items=16, answers=64, characters=3000)
OURS = {200, 400, 413, 415, 422, 429}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with places.real(*places.make_library(tmp_path_factory.mktemp("bad")), limits=LIMITS) as one:
        yield one


# --- mutated bodies -----------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, 0, -1, 10**40, 1e308, "", " ", "\0", "a\0b", "\u202e", "😀" * 50, "<script>", "a" * 3001, [], {}, [[]],
    ["sms", 3], {"a": {"b": []}}, "all", "sms@1", "sms@", "@", "../x", "nope", "sms\n", "%00", "word " * 500,
]  # fmt: skip


def good(rng: random.Random) -> dict[str, Any]:
    """A call that is fine, but for a form of text that its task may not take."""
    items = []
    for name in rng.choices(list(GIVEN), k=rng.randint(1, 3)):
        tasks: Any = {"task": name}
        if rng.random() < 0.1:
            tasks = {"tasks": rng.choice(["all", [name], [name, "sms"]])}
        given = GIVEN[rng.choice(list(GIVEN)) if rng.random() < 0.1 else name]
        more = rng.choice([{}, {}, {"top_k": 1}, {"threshold": 0.5}, {"long": "windows"}, {"explain": True}])
        items.append({**tasks, **given, **more})
    return {"requests": items}


def changed(value: Any, rng: random.Random) -> Any:
    """One thing in it is another: replaced, gone, doubled, renamed, or wrapped."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        out = dict(value)
        match rng.randrange(6):
            case 0:
                del out[key]
            case 1:
                out[rng.choice(["task", "tasks", "text", "x", "", "top_k", "threshold", "explain"])] = rng.choice(ODD)
            case 2:
                out[key] = rng.choice(ODD)
            case _:
                out[key] = changed(out[key], rng)
        return out
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return [*value[:i], *([] if rng.random() < 0.1 else [changed(value[i], rng)]), *value[i + 1 :]]
    if rng.random() < 0.1:
        return [value] * rng.choice([0, 2, 20])
    return rng.choice(ODD)


def mutated(rng: random.Random) -> bytes:
    value: Any = good(rng)
    for _ in range(rng.randint(0, 3)):
        if rng.random() < 0.2:
            value = changed(value, rng)
        elif isinstance(value, dict) and isinstance(value.get("requests"), list):
            value = {
                **value,
                "requests": [changed(one, rng) if rng.random() < 0.5 else one for one in value["requests"]],
            }
    body = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    match rng.randrange(12):
        case 0:
            return body[: rng.randrange(len(body))]
        case 1:
            i = rng.randrange(len(body))
            return body[:i] + bytes(rng.choices(range(256), k=rng.randint(1, 4))) + body[i + 1 :]
        case 2:
            deep = rng.choice([50, 1000, 20_000])
            return rng.choice([b"[" * deep + b"]" * deep, b'{"requests":' + b"[" * deep + b"]" * deep + b"}"])
        case 3:
            return body.replace(b'"', rng.choice([b"'", b"\xff", b"\0", b'\\ud800"', b""]), rng.randint(1, 3))
        case 4 if rng.random() < 0.1:
            return body.replace(b"film", b"x" * 150_000) + b" " * rng.choice([0, 100_000])
        case _:
            return body


async def straight(app: Any, body: bytes, path: str) -> tuple[int, bytes]:
    """Ask the application without a client between."""
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])
    over = asyncio.Event()

    async def receive() -> Any:
        if (part := next(parts, None)) is not None:
            return part
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    over.set()
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def check(body: bytes, path: str, status: int, said: bytes, seen: Counter[str]) -> None:
    assert status in OURS, (status, body[:500], said[:500])
    if status != 200:
        assert set(json.loads(said)["error"]) == {"type", "message"}
    elif path == "/v1/predict":
        asked, found = json.loads(body)["requests"], json.loads(said)["results"]
        assert len(asked) == len(found)
        kinds = [one.get("error", {}).get("type", "group" if "results" in one else "answer") for one in found]
        assert "internal" not in kinds, (body[:500], said[:500])
        seen.update(kinds)
    seen[str(status)] += 1


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("hundreds", [4, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_mutated_bodies_do_no_harm(place: Place, hundreds: int):
    rng, seen, sizes = random.Random(6), Counter[str](), []

    async def some(number: int) -> None:
        bodies = [mutated(rng) for _ in range(number)]
        paths = [rng.choice(["/v1/predict"] * 7 + ["/v1/predict/stream"]) for _ in bodies]
        answers = await asyncio.gather(*(straight(place.app, *one) for one in zip(bodies, paths, strict=True)))
        for body, path, (status, said) in zip(bodies, paths, answers, strict=True):
            check(body, path, status, said, seen)

    async def everything() -> None:
        for i in range(hundreds):
            await some(AT_ONCE)
            place.log.truncate(place.log.seek(0))
            if i % 20 == 19:
                sizes.append(resident())

    asyncio.run(everything())
    expected = {"200", "400", "422", "413", "answer", "group", "invalid", "unknown_task", "refused", "too_long"}
    assert expected <= set(seen), f"all kinds of it were tried: {seen}"
    assert min(seen[kind] for kind in ("200", "400", "422", "answer", "invalid", "unknown_task")) > hundreds, seen
    assert not sizes or sizes[-1] - sizes[0] < MORE, sizes
    counts = place.service.engine.counts()
    assert (counts.waiting, place.service.engine.ready) == (0, True)


def test_a_bug_would_be_noticed():
    """The check above can fail."""
    place = fake(FakeEngine(answer=lambda ask: 1 / 0))  # type: ignore[arg-type, return-value]
    body = json.dumps(good(random.Random(0)) | {"requests": [{"task": "sms", "text": "a"}]}).encode()
    status, said = asyncio.run(straight(place.app, body, "/v1/predict"))
    with pytest.raises(AssertionError):
        check(body, "/v1/predict", status, said, Counter())


# --- what only a socket can do ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Any:
    with listening(fake(FakeEngine(), limits=SMALL)) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


HEAD = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
FINE = json.dumps({"requests": [{"task": "sms", "text": "a"}]}).encode()
LENGTH = b"content-length: %d\r\n\r\n"
SOCKETS: dict[str, tuple[bytes, int | None]] = {
    "fine": (HEAD + LENGTH % len(FINE) + FINE, 200),
    "broken UTF-8": (HEAD + LENGTH % 30 + b'{"requests": [{"text": "\xc3\x28"}]}', 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, 400),
    "a bad path": (b"GET /%zz\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a lying length": (HEAD + LENGTH % 1000 + FINE, 408),
    "no body at all": (HEAD + LENGTH % 10, 408),
    "a slow head": (HEAD, 400),
    "silence": (b"", 400),
    "an endless head": (HEAD + b"".join(b"x-%d: %s\r\n" % (i, b"a" * 200) for i in range(50)), 400),
    "a huge length": (HEAD + LENGTH % 10**15 + FINE, 413),
    "a length of two minds": (HEAD + b"content-length: 5\r\n" + LENGTH % 9 + b"{}", 400),
    "a bad chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    "too many chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b" " * 4096 + b"\r\n") * 8, 413),
    "NUL in a header": (HEAD + b"x-deadline-ms: 1\x000\r\n" + LENGTH % len(FINE) + FINE, 400),
}


@pytest.mark.parametrize("name", SOCKETS)
def test_a_client_that_misbehaves_is_told_and_let_go(address: tuple[str, int], name: str):
    sent, status = SOCKETS[name]
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(sent)
        said = client.recv(65536)
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:200]
    response = httpx.post(
        f"http://{address[0]}:{address[1]}/v1/predict", content=FINE, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200


def test_slow_clients_do_not_hold_up_others(address: tuple[str, int]):
    slow: list[socket.socket] = []
    try:
        for _ in range(50):
            slow.append(socket.create_connection(address, timeout=10))
            slow[-1].sendall(HEAD + LENGTH % 1000 + b"{")  # at once: a head that is late is a 400
        response = httpx.get(f"http://{address[0]}:{address[1]}/health")
        assert response.status_code == 200
        assert {client.recv(12) for client in slow} == {b"HTTP/1.1 408"}
    finally:
        for client in slow:
            client.close()


def test_a_head_that_arrives_while_the_service_is_busy_is_read():
    busy = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        if scope["path"] == "/busy":
            busy.set()
            time.sleep(2 * limits.patience)  # holds up the loop, as a machine under load does
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    limits = dataclasses.replace(SMALL, patience=0.3)
    with take_port("127.0.0.1", 0) as taken:
        server, at = Server(app, limits), taken.getsockname()
        thread = threading.Thread(target=server.run, args=([taken],))
        thread.start()
        until(lambda: server.started)
        try:
            with socket.create_connection(at, timeout=10) as first, socket.create_connection(at, timeout=10) as second:
                first.sendall(b"GET /busy HTTP/1.1\r\nhost: x\r\n\r\n")
                assert busy.wait(10)
                second.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert second.recv(12) == b"HTTP/1.1 200"
        finally:
            server.end()
            thread.join(30)


def test_more_connections_than_there_is_room_for_are_turned_away():
    with listening(fake(FakeEngine(), limits=dataclasses.replace(SMALL, connections=4, patience=5.0))) as url:
        host, port = url.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            assert httpx.get(f"{url}/health").status_code == 503
        until(lambda: httpx.get(f"{url}/health").status_code == 200)


# --- schemathesis -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = Keys([Key("all", frozenset(SCOPES), hashlib.sha256(b"k").digest())])
    schemathesis = pytest.importorskip("schemathesis")
    with places.real(*places.make_library(tmp_path_factory.mktemp("schema")), limits=LIMITS, keys=keys) as one:
        yield schemathesis.openapi.from_asgi("/openapi.json", one.app)


EXAMPLES = {"POST": 40, "PUT": 25, "DELETE": 10, "GET": 5}


@pytest.mark.full
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_service_does_as_its_document_says(document: Any, mode: str):
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    # not that bad data is always refused: a bad item fails alone, in a call that succeeds
    wanted = [not_a_server_error, checks.status_code_conformance, checks.content_type_conformance]
    wanted.append(checks.response_schema_conformance)
    tried = Counter[str]()
    for found in document.get_all_operations():
        operation = found.ok()
        try:
            cases = operation.as_strategy(generation_mode=GenerationMode(mode))
            many = settings(
                max_examples=EXAMPLES[operation.method.upper()],
                deadline=None,
                suppress_health_check=list(HealthCheck),
                derandomize=True,
                database=None,
            )

            @many
            @given(case=cases)
            def ask(case: Any) -> None:
                response = case.call_and_validate(checks=wanted, headers={"Authorization": "Bearer k"})
                assert response.status_code not in (401, 403)
                tried[case.operation.label] += 1

            ask()
        except Unsatisfiable:  # nothing can be wrong with a request that has neither a body nor parameters
            continue
    often = {"POST /v1/predict", "POST /v1/predict/stream", "PUT /v1/tasks/{name}"}
    assert all(tried[label] >= 5 for label in often), tried
