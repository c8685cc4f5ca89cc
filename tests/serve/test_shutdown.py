"""How a service ends: what was accepted is answered, and after a kill it comes back with the same tasks."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from serve import place as places
from serve.place import FakeEngine, fake, listening
from serve.process import Process, state_of

import inlay
from inlay.cli import serve
from inlay.errors import InlayError
from inlay.library.library import Library
from inlay.serve.process import run, take_port, url_of
from inlay.serve.watch import Choices

CLIENTS = 8


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    base, library = places.make_library(tmp_path_factory.mktemp("end"))
    places.add(inlay.Host(base), library, "sms", 50, base)
    return library


class Load:
    """Clients that ask without a pause, each on a connection that it keeps, until nobody is there to be asked."""

    def __init__(self, url: str):
        self.url = url
        self.answers: list[int] = []
        self.problems: list[str] = []
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int) -> None:
        names = list(places.GIVEN)
        with httpx.Client(base_url=self.url, timeout=30) as client:
            for i in range(100_000):
                name = names[(number + i) % len(names)]
                body = {"requests": [{"task": name, **places.GIVEN[name]}] * 3}
                try:
                    response = client.post("/v1/predict", json=body)
                except httpx.ConnectError:
                    return  # it listens no more
                except httpx.HTTPError as error:
                    self.problems.append(repr(error))
                    return
                if response.status_code != 200 or any("error" in one for one in response.json()["results"]):
                    self.problems.append(response.text)
                self.answers.append(len(response.json().get("results", ())))

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.mark.full
def test_the_end_under_load_answers_all_that_was_accepted(library: Library):
    with Process(library, "--port", 0) as process:
        load = Load(process.url)
        while len(load.answers) < 50:
            time.sleep(0.01)
        assert process.end(signal.SIGTERM) == 0, process.said()
        load.join()
        assert load.problems == []
        assert set(load.answers) == {3}
        assert "Traceback" not in process.said()


def test_a_request_that_is_on_its_way_is_answered():
    """Half of it came before the end was asked for, half comes after."""
    body = json.dumps({"requests": [{"task": "sms", "text": "a film"}]}).encode()
    head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with listening(fake(FakeEngine())) as url:
        host, port = url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)), timeout=20)
        client.sendall(head % len(body) + body[:10])
        time.sleep(0.1)
        rest = threading.Timer(0.25, client.sendall, [body[10:]])
        rest.start()
    with client:
        said = b"".join(iter(lambda: client.recv(65536), b""))
    rest.join()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["results"][0]["label"] == "ham"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)


def test_a_service_that_cannot_warm_up_ends_with_the_reason():
    engine = FakeEngine(ready=False)
    engine.start = lambda: _fail()  # type: ignore[method-assign]
    with take_port("127.0.0.1", 0) as taken, pytest.raises(InlayError, match="no room for the base"):
        run(fake(engine).service, [taken])


def test_the_end_while_it_starts_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch):
    """The socket is closed then, and has no address any more."""
    engine, told = FakeEngine(ready=False), []
    config: Any = SimpleNamespace(base=None, weights=None, service=lambda *_: fake(engine).service)
    monkeypatch.setattr("inlay.engine.host.Host", lambda *_, **__: None)
    with take_port("127.0.0.1", 0) as taken:
        url = url_of(taken)

        def start() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            places.until(lambda: taken.fileno() == -1)

        engine.start = start  # type: ignore[method-assign]
        serve._serve_here(config, Choices(), [taken], lambda at, *_, **__: told.append(at))
    assert told == [url]


def _fail() -> None:
    raise InlayError("no room for the base")


@pytest.mark.full
def test_after_a_kill_it_comes_back_with_the_same_tasks(library: Library, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Process(library, "--port", port, "--open-management") as process:
        assert process.about["choices"] == str(state_of(library, port))
        with inlay.Client(process.url) as client:
            client.serve("sms", "sms@1")
            client.serve("copy", "topic@1")
            client.withdraw("ner")
            before = {card["name"]: card["ref"] for card in client.tasks()}
            answers = client.predict([("sms", "a film"), ("copy", "a film")])
            load = Load(process.url)
            while len(load.answers) < 20:
                time.sleep(0.01)
            assert process.end(signal.SIGKILL) == -signal.SIGKILL
            load.join()
            assert any("Error(" in problem for problem in load.problems), "the test above can fail"
    assert before == {"ask": "ask@1", "copy": "topic@1", "sms": "sms@1", "stars": "stars@1", "topic": "topic@1"}
    with Process(library, "--port", port) as process, inlay.Client(process.url) as client:
        assert {card["name"]: card["ref"] for card in client.tasks()} == before
        assert client.predict([("sms", "a film"), ("copy", "a film")]) == answers
        assert process.end(signal.SIGINT) == 0
