"""What is refused is told: too large a body, a wrong method, a task that is not served."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serve.place import SMALL, FakeEngine, fake, listening

from inlay.serve.keys import Key, Keys
from inlay.serve.served_tasks import near


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(fake(FakeEngine(), limits=replace(SMALL, patience=10.0))) as found:
        yield found


@pytest.mark.parametrize("times", [2, 12, 1000])
def test_a_client_that_sends_a_body_that_is_too_large_gets_its_413(url: str, times: int):
    """It reads only when all is sent, as most clients do; beyond a bound, nobody listens to it any more."""
    host, port = url.removeprefix("http://").split(":")
    size = times * SMALL.body
    with socket.create_connection((host, int(port)), timeout=20) as client:
        head = "POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
        client.sendall(f"{head}{size}\r\n\r\n".encode())
        try:
            for _ in range(size // 10_000):
                client.sendall(b" " * 10_000)
            said = b"".join(iter(lambda: client.recv(65536), b""))
        except ConnectionError:
            assert times > 16, "reset"
            return
    assert times < 1000, "nobody listens for ever"
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in said.lower()
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"] == "the body is larger than 20,000 bytes"


def test_a_refusal_before_the_body_was_read_reaches_its_client():
    keys = Keys([Key("web", frozenset({"predict"}), b"0" * 32)])
    with listening(fake(FakeEngine(), keys=keys, limits=replace(SMALL, patience=10.0))) as url:
        for method, path in (("POST", "/v1/predict"), ("PUT", "/v1/tasks/sms")):
            response = httpx.request(method, f"{url}{path}", content=b" " * 200_000)
            assert (response.status_code, response.headers["connection"]) == (401, "close")


def test_a_stream_of_chunks_that_is_too_large_gets_its_413(url: str):
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    response = httpx.post(f"{url}/v1/predict", content=chunks(), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (413, "too_large")


def ask(method: str, path: str) -> httpx.Response:
    async def go() -> httpx.Response:
        async with fake(FakeEngine()).client() as client:
            return await client.request(method, path)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/predict", {"POST"}),
        ("GET", "/v1/predict/stream", {"POST"}),
        ("POST", "/v1/tasks", {"GET"}),
        ("POST", "/health", {"GET"}),
        ("POST", "/", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_405_and_says_which_is_right(method: str, path: str, allowed: set[str]):
    response = ask(method, path)
    assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, allowed)
    assert response.json()["error"]["message"].startswith(f"{method} {path} is not possible: use ")


def test_a_path_that_is_not_there_is_404():
    for path in ("/v1/nothing", "/nothing.js", "/../keys.py", "/static/app.js"):
        response = ask("GET", path)
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found")


MANY = [f"task-{i:04}" for i in range(3000)] + ["sentiment", "toxicity"]


@pytest.mark.parametrize(
    ("name", "served", "said"),
    [
        ("smss", ["sms", "topic"], "Did you mean sms? Valid: sms, topic"),
        ("zzz", ["sms", "topic"], "Valid: sms, topic"),
        ("sentimnet", MANY, "Did you mean sentiment? GET /v1/tasks lists all 3,002"),
        ("task-00170", MANY, "Did you mean task-0017"),
        ("qqqq", MANY, "GET /v1/tasks lists all 3,002"),
    ],
)
def test_near_names_are_told_however_many_there_are(name: str, served: Any, said: str):
    assert near(name, served).startswith(said)
