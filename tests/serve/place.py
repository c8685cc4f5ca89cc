"""A tiny base, a library of every kind of task, and services around them: the real engine, or one that does as told."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import tiny

import inlay
from inlay.errors import SlotError
from inlay.library.library import Library
from inlay.serve.app import Service, build
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Ask, Busy, Pending, Served, Settings
from inlay.serve.keys import Keys
from inlay.serve.limits import Limits
from inlay.serve.logs import Log
from inlay.serve.process import lifespan_of, take_port, url_of
from inlay.serve.server import Server
from inlay.serve.watch import Catalogue, Choices, TaskSelection

TASKS = {
    "sms": ("lora", "classification:temperature=2.0", ["ham", "spam"]),
    "topic": ("adapterbias", "multilabel", ["a", "b", "c"]),
    "stars": ("bitfit", "regression:mean=3.0", ["value"]),
    "ner": ("houlsby:size=4", "tagging", ["O", "B-PER", "I-PER"]),
    "ask": ("adapterbias", "qa", ["start", "end"]),
}
TEXT, PAIR = "ana meets bob in lima", ("who meets bob ?", "bob was in oslo . ana meets bob in lima on june 2")
GIVEN: dict[str, Any] = {
    "sms": {"text": TEXT},
    "topic": {"text": TEXT},
    "stars": {"text": TEXT},
    "ner": {"tokens": TEXT.split()},
    "ask": {"question": PAIR[0], "context": PAIR[1]},
}


def make_library(root: Path) -> tuple[str, Library]:
    """A base in a folder, and a library with one adapter of each kind."""
    base = tiny.save_text_model(root / "base")
    host, library = inlay.Host(base), Library(root / "library")
    for seed, name in enumerate(TASKS):
        add(host, library, name, seed, base)
    return base, library


def add(host: inlay.Host, library: Library, name: str, seed: int, base: str, **more: Any) -> int:
    """One more version of a name; returns its number."""
    method, task, labels = TASKS[name]
    host.add(name, method, task=task, labels=labels, seed=seed)
    tiny.shake(host, name, seed)
    version = library.put(host.adapter(name), base_name=base, **more).version
    host.unload(name)
    return version


@dataclass
class Place:
    """A service in this process, asked without a network."""

    service: Service
    log: StringIO
    app: Any

    def lines(self) -> list[Any]:
        """What was logged."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def client(self, host: str = "127.0.0.1", **how: Any) -> httpx.AsyncClient:
        """Asks the application itself."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True, client=(host, 5000))
        return httpx.AsyncClient(transport=transport, base_url=how.pop("base_url", "http://localhost:8000"), **how)


@contextlib.contextmanager
def real(
    base: str,
    library: Library,
    *,
    selection: TaskSelection | None = None,
    choices: Choices | None = None,
    settings: Settings | None = None,
    **more: Any,
) -> Iterator[Place]:
    """A service with the real engine, warm."""
    engine = Engine(inlay.Host(base), library, settings or Settings())
    catalogue = Catalogue(engine, library, selection, choices)
    log = StringIO()
    more = {"keys": MANAGED, **more}
    service = Service(engine, catalogue, log=Log(more.pop("log_texts", False), log), **more)
    assert catalogue.sync(force=True) == []
    engine.start()
    try:
        yield Place(service, log, build(service))
    finally:
        engine.stop()


@dataclass
class FakeEngine:
    """Answers when it is told to."""

    names: tuple[str, ...] = ("sms", "topic")
    ready: bool = True
    failed: BaseException | None = None
    troubled: bool = False
    room: int = 1000
    answer: Callable[[Ask], dict[str, Any]] | None = lambda ask: {"task": ask.task, "text": ask.given, "label": "ham"}
    """None: never."""
    asked: list[tuple[Ask, Pending, float | None]] = field(default_factory=list)

    def start(self) -> None:
        self.ready = True

    def stop(self, drain: bool = True, seconds: float = 0) -> None:
        self.ready = False

    def submit(self, ask: Ask, deadline: float | None = None) -> Pending:
        if ask.task not in self.names:
            raise SlotError(f"no task {ask.task[:100]!r} is served")
        if len(self.asked) >= self.room:
            raise Busy("full", 2.2)
        pending = Pending()
        self.asked.append((ask, pending, deadline))
        if self.answer is not None:
            try:
                pending.set_result(self.answer(ask))
            except Exception as error:
                pending.set_exception(error)
        return pending

    def tasks(self) -> list[Served]:
        card = {"task": "classification", "method": "lora", "labels": ["ham", "spam"], "head": "linear"}
        return [Served(name, 1, f"{name}@1", card, "bank") for name in self.names]

    def counts(self) -> Any:
        return types.SimpleNamespace(**dict.fromkeys(_COUNTS, 0), tasks={})

    def listen(self, heard: Any) -> None:
        """Nothing is ever said."""


_COUNTS = (
    "waiting batches rows tokens seconds answers errors late cancelled refused hits misses reads read_seconds loads "
    "load_seconds evictions resident remembered"
).split()


def fake(engine: FakeEngine, **more: Any) -> Place:
    """A service around an engine that does as told."""
    log = StringIO()
    catalogue: Any = types.SimpleNamespace(put=None, take=None, sync=lambda force: [], refused=list)
    service = Service(engine, catalogue, log=Log(more.pop("log_texts", False), log), **more)  # type: ignore[arg-type]
    return Place(service, log, build(service))


@contextlib.contextmanager
def listening(place: Place) -> Iterator[str]:
    """The service on a socket of its own, until the end of the block; gives its URL."""
    failures: list[Exception] = []
    with take_port("127.0.0.1", 0) as taken:
        server = Server(build(place.service, lifespan_of(place.service, failures.append)), place.service.limits)
        thread = threading.Thread(target=server.run, args=([taken],))
        thread.start()
        until(lambda: server.started and place.service.engine.ready)
        try:
            yield url_of(taken)
        finally:
            server.end()
            thread.join(30)
    assert not thread.is_alive()
    assert failures == []


def until(true: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "this never happened"
        time.sleep(0.005)


SMALL = Limits(body=20_000, items=8, answers=12, characters=200, seconds=5.0, patience=0.5, headers=4096)
MANAGED = Keys(open_management=True)
