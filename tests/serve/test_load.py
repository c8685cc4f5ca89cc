"""Under load: tasks come, change and go, or do not fit the bank by far, and every answer is right. None is lost."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from serve.tasks import ASKS, TASKS, put, running, same, without_version

import inlay
from inlay.errors import SlotError
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Ask

TEXTS = ["a fine film", "ana meets bob in lima", "we love our soup , and it was not bad", "no refund"]


@dataclass
class Clients:
    """Threads that ask without pause, and write down what came back."""

    engine: Engine
    draw: Callable[[random.Random], tuple[str, Any]]
    found: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    unknown: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(6)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _ask(self, seed: int) -> None:
        drawn = random.Random(seed)
        while not self._stop.is_set():
            asked = [self.draw(drawn) for _ in range(drawn.randint(1, 8))]
            pending = []
            for name, given in asked:
                try:
                    pending.append((name, given, self.engine.submit(Ask(name, given))))
                except SlotError:
                    self.unknown += 1
                except BaseException as error:
                    self.errors.append(error)
            for name, given, one in pending:
                try:
                    self.found.append((name, given, one.result(60)))
                except BaseException as error:
                    self.errors.append(error)


@pytest.mark.full
def test_tasks_come_change_and_go_under_load(tmp_path: Path):
    """Every answer is that of a version which was served at some time between the ask and the answer."""
    host, twin, library = tiny.text_host(), tiny.text_host(), inlay.Library(tmp_path / "library")
    kinds, names = list(TASKS), [f"task{i}" for i in range(6)]
    right: dict[tuple[str, int, Any], dict[str, Any]] = {}
    versions = dict.fromkeys(names, 0)

    def make(name: str) -> None:
        """Another kind of task every time: other labels, another head, another method."""
        versions[name] += 1
        number = versions[name]
        kind = kinds[(names.index(name) + number) % 4]  # those that take one text
        adapter = put(library, twin, name, kind, 100 * names.index(name) + number)
        twin.load(adapter)
        for text in TEXTS:
            right[name, number, text] = twin.predict([(name, text)])[0]
        twin.unload(name)

    for name in names:
        for _ in range(5):
            make(name)
    drawn, served = random.Random(7), dict.fromkeys(names, 1)
    with running(host, library, {name: f"{name}@1" for name in names}, resident=4, tokens=256) as engine:
        clients = Clients(engine, lambda r: (r.choice(names), r.choice(TEXTS)))
        for _ in range(200):
            name = drawn.choice(names)
            if name in served and drawn.random() < 0.25:
                engine.withdraw(name)
                del served[name]
            else:
                served[name] = engine.serve(name, f"{name}@{drawn.randint(1, 5)}").version
            time.sleep(drawn.random() * 0.005)
        clients.stop()
        assert {one.name: one.version for one in engine.tasks()} == served
        assert engine._served.open == 0
        assert len(engine._served._asks) == len(engine._queue) == 0
    assert clients.errors == []
    assert clients.unknown > 0  # asks for what was withdrawn
    assert len({(name, answer["version"]) for name, _, answer in clients.found}) > 20
    for name, text, answer in clients.found:
        assert same(without_version(answer), right[name, answer["version"], text]), (name, text)


def test_another_version_would_be_noticed(tmp_path: Path):
    """The check above can fail."""
    twin, library = tiny.text_host(), inlay.Library(tmp_path / "library")
    answers = []
    for seed in (1, 2):
        twin.load(put(library, twin, "task", "tone", seed))
        answers.append(twin.predict([("task", TEXTS[0])])[0])
        twin.unload("task")
    assert not same(*answers)


@pytest.mark.parametrize(("tasks", "room"), [pytest.param(1000, 64, marks=pytest.mark.full), (12, 1)])
def test_many_more_tasks_than_fit_the_bank(tmp_path: Path, monkeypatch: Any, tasks: int, room: int):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # most of the time of writing a library
    host, twin, library = tiny.text_host(), tiny.text_host(), inlay.Library(tmp_path / "library")
    kinds = [name for name, (method, *_) in TASKS.items() if method not in ("finetune", "diffprune")][:5]
    made = [put(library, twin, f"kind{i}", kinds[i % len(kinds)], i) for i in range(10)]
    given = [next(text for name, text in ASKS if name == kind) for kind in kinds]
    right = []
    for i, adapter in enumerate(made):
        twin.load(adapter)
        right.append(twin.predict([(adapter.name, given[i % len(kinds)])])[0])
        twin.unload(adapter.name)
    names = [f"task{i}" for i in range(tasks)]
    for i, name in enumerate(names):
        library.put(replace(made[i % len(made)], name=name))
    entries = {entry.name: entry for entry in library.list()}
    drawn = random.Random(0)
    with running(host, library, {}, resident=room, remembered=2 * room, tokens=512, queue=4000) as engine:
        for name in names:
            engine.serve(name, entries[name], read=False)
        popular = names[: room // 2 or 1]
        asked = [drawn.randrange(tasks) if drawn.random() < 0.5 else drawn.randrange(len(popular)) for _ in range(600)]
        pending = [engine.submit(Ask(names[i], given[i % len(made) % len(kinds)])) for i in asked]
        for i, one in zip(asked, pending, strict=True):
            answer = without_version(one.result(60))
            assert same({**answer, "task": ""}, {**right[i % len(made)], "task": ""})
            assert len(host.names) <= room
        for i in range(len(popular)):
            engine.submit(Ask(names[i], given[i % len(made) % len(kinds)])).result(60)
        counts = engine.counts()
        assert counts.resident <= room
        assert counts.remembered <= 2 * room
        assert counts.evictions > 0
        assert counts.loads >= min(tasks, len(set(asked)))
        assert counts.hits + counts.misses == len(asked) + len(popular)
        assert min(counts.read_seconds, counts.load_seconds) > 0
        assert {one.state for one in engine.tasks()} == {"bank", "memory", "disk"} if tasks > 100 else True
