"""When the engine itself fails: it goes on if it can; otherwise the process ends with an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from serve.place import FakeEngine, fake, until
from serve.tasks import put

import inlay
from inlay.errors import RunError
from inlay.serve import engine as engines
from inlay.serve.app import Service
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Ask, Late, Stopped
from inlay.serve.process import run, take_port
from inlay.serve.watch import Catalogue


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    host, library = inlay.Host(tiny.save_text_model(tmp_path / "base")), inlay.Library(tmp_path / "library")
    put(library, host, "tone", "tone", 1)
    made = Engine(host, library)
    made.serve("tone", "tone")
    made.start()
    yield made
    made.stop(drain=False)


def ask(engine: Engine) -> Any:
    return engine.submit(Ask("tone", "a fine film"))


def has_stopped(engine: Engine) -> bool:
    try:
        return isinstance(ask(engine).exception(20), Stopped)
    except Stopped:
        return True


def fail(*_: Any) -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_engine_goes_on_after_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    answer = ask(engine).result(20)
    turns: list[int] = []

    def sometimes(*given: Any) -> Any:
        turns.append(1)
        return fail() if len(turns) <= 3 else loads(*given)

    loads = engine._pager.load_some
    monkeypatch.setattr(engine._pager, "load_some", sometimes)
    until(lambda: has_stopped(engine))  # the turn under way may still answer
    assert engine.ready
    until(lambda: not engine.troubled)
    assert ask(engine).result(20) == answer
    assert (engine.failed, len(turns) >= 4) == (None, True)


def test_an_engine_that_fails_for_long_gives_up(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    told: list[BaseException] = []
    engine.on_failure = told.append
    monkeypatch.setattr(engines, "_PATIENCE", 0.1)
    monkeypatch.setattr(engines, "_PAUSE", 0.02)
    monkeypatch.setattr(engine._pager, "load_some", fail)
    until(lambda: has_stopped(engine))  # the turn under way may still answer
    until(lambda: told)
    assert "illegal memory access" in str(told[0])
    assert (engine.failed, engine.ready) == (told[0], False)


@pytest.mark.parametrize("where", ["batches", "loads"])
def test_a_base_that_no_longer_runs_ends_the_engine(engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch):
    """As a CUDA error does, which stays for the life of a process."""
    ask(engine).result(20)
    ready: list[bool] = []
    monkeypatch.setattr(engines._log, "critical", lambda *_, **__: ready.append(engine.ready))
    monkeypatch.setattr(engine.host, "hidden", fail)
    if where == "batches":
        monkeypatch.setattr(engine.host, "logits_on_cpu", fail)
        assert ask(engine).exception(20) is not None
    else:
        monkeypatch.setattr(engine.host, "enter", fail)
        engine.serve("other", put_another(engine))
    until(lambda: engine.failed is not None)
    assert not engine.ready
    until(lambda: ready)
    assert ready == [False]  # when the log says so


def put_another(engine: Engine) -> str:
    host = inlay.Host(engine.host.base.name)
    put(engine.library, host, "other", "topics", 2)
    return "other"


def test_one_batch_that_fails_ends_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    ask(engine).result(20)
    with monkeypatch.context() as patch:
        patch.setattr(engine.host, "logits_on_cpu", fail)
        assert isinstance(ask(engine).exception(20), RuntimeError)
    assert ask(engine).result(20)
    assert engine.failed is None


def test_a_service_whose_engine_has_failed_ends_with_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "start", lambda: None)  # it runs

    def break_it() -> None:
        monkeypatch.setattr(engine._runner, "works", lambda: False)
        monkeypatch.setattr(engine._pager, "load_some", fail)
        until(lambda: has_stopped(engine))  # the turn under way may still answer

    def started() -> None:
        threading.Thread(target=break_it).start()

    service = Service(engine, Catalogue(engine, engine.library))
    with take_port("127.0.0.1", 0) as taken, pytest.raises(RunError, match="the engine has failed: CUDA error"):
        run(service, [taken], started)


def test_health_says_that_the_engine_has_failed():
    place = fake(FakeEngine(failed=RuntimeError("gone")))

    async def get(path: str) -> httpx.Response:
        async with place.client() as client:
            return await client.get(path)

    response = asyncio.run(get("/health"))
    assert (response.status_code, response.json()["error"]["type"]) == (503, "failed")
    place.service.engine.failed = None
    place.service.engine.troubled = True
    assert asyncio.run(get("/health")).json() == {"status": "alive"}
    assert asyncio.run(get("/ready")).status_code == 503
    place.service.engine.troubled = False
    assert asyncio.run(get("/ready")).json() == {"status": "ready"}


def test_an_ask_that_is_late_is_no_batch(engine: Engine):
    heard: list[Any] = []
    engine.listen(heard.append)
    metrics = Service(engine, Catalogue(engine, engine.library)).metrics
    late = engine.submit(Ask("tone", "a fine film"), deadline=0.0)
    assert isinstance(late.exception(20), Late)
    assert ask(engine).result(20)
    until(lambda: len(heard) == 1)
    assert heard[0].rows == 1
    page = metrics.page().decode()
    for line in ("inlay_batch_rows_count 1.0", 'inlay_answer_seconds_count{task="tone"} 1.0', "inlay_late_total 1.0"):
        assert line in page.splitlines()
    assert (engine.counts().batches, engine.counts().tasks["tone"].errors) == (1, 1)
