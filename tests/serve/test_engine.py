"""The engine: any mix of asks gives what each alone gives offline; and what happens when something goes wrong."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from serve.tasks import ASKS, LONG, TASKS, offline, put, running, same, without_version

import inlay
from inlay.errors import AdapterError, DamagedError, InlayError, LibraryError, SlotError
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Ask, BatchDone, Busy, Late, Stopped
from inlay.serve.version import encode


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return tiny.text_host()


@pytest.fixture(scope="module")
def twin() -> inlay.Host:
    """The same base, for answers offline: the engine's thread has the other one to itself."""
    return tiny.text_host()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> inlay.Library:
    return inlay.Library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def adapters(twin: inlay.Host, library: inlay.Library) -> dict[str, inlay.Adapter]:
    return {name: put(library, twin, name, name, i) for i, name in enumerate(TASKS)}


@pytest.fixture(scope="module")
def right(twin: inlay.Host, adapters: dict[str, inlay.Adapter]) -> list[dict[str, Any]]:
    """What every ask gives offline."""
    return [offline(twin, adapters[name], given) for name, given in ASKS]


@pytest.fixture
def engine(host: inlay.Host, library: inlay.Library, adapters: Any) -> Iterator[Engine]:
    with running(host, library, {name: name for name in TASKS}) as made:
        yield made


@contextmanager
def held(host: inlay.Host) -> Iterator[Callable[[], None]]:
    """Keep the engine's thread in its next batch; yields what waits until it is there."""
    inside, gate = threading.Event(), threading.Event()
    run = host.logits_on_cpu

    def hold(*how: Any) -> Any:
        inside.set()
        assert gate.wait(20)
        return run(*how)

    host.logits_on_cpu = hold  # type: ignore[method-assign]
    try:
        yield lambda: None if inside.wait(10) else pytest.fail("no batch")
    finally:
        gate.set()
        del host.logits_on_cpu  # type: ignore[method-assign]


def answers(engine: Engine, asks: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [pending.result(20) for pending in [engine.submit(Ask(*one)) for one in asks]]


def test_a_mix_gives_what_each_alone_gives_offline(engine, right):
    for found, expected in zip(answers(engine, ASKS), right, strict=True):
        assert found["version"] == 1
        assert same(without_version(found), expected)
    assert not same(right[1], right[5])


def test_one_alone_gives_the_same_bits(engine, right):
    for ask, expected in zip(ASKS, right, strict=True):
        assert without_version(engine.submit(Ask(*ask)).result(20)) == expected


def test_how_an_answer_is_wanted(engine, twin, adapters):
    for how in ({"top_k": 1}, {"threshold": 0.99}, {"raw": True}):
        found = engine.submit(Ask("tone", "a fine film", **how)).result(20)
        assert same(without_version(found), offline(twin, adapters["tone"], "a fine film", **how))


def test_threads_encode_without_disturbing_one_another(engine):
    """A tokenizer has truncation as a state, and complains if it is changed while it is in use."""
    version = engine._served.find("tone")
    asks = [Ask("tone", LONG * 4, long=long) for long in ("cut", "windows")]

    def lengths(ask: Ask) -> list[int]:
        return [len(row.ids) for row in encode(version, ask, engine._tokenizers).rows]

    expected = [lengths(ask) for ask in asks]
    assert expected[0] != expected[1]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lengths, asks * 200))
    assert found == expected * 200


def test_asks_run_together(engine, host):
    answers(engine, [(name, "ana") for name in ("tone", "topics", "names", "stars")])  # all are in the bank now
    with held(host) as wait:
        first = engine.submit(Ask("tone", "a fine film"))
        wait()
        others = [engine.submit(Ask(name, "ana meets bob")) for name in ("tone", "topics", "names", "stars")]
    assert [one.result(20)["task"] for one in others] == ["tone", "topics", "names", "stars"]
    assert first.batch == 1
    assert {one.batch for one in others} == {4}
    assert min(one.seconds for one in others) > 0


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (Ask("tune", "x"), SlotError, "Did you mean tone"),
        (Ask("tone@2", "x"), SlotError, "version 1, not at '2'"),
        (Ask("tone@prod", "x"), SlotError, "version 1, not at 'prod'"),
        (Ask("tone", 7), InlayError, "a request is a text"),  # type: ignore[arg-type]
        (Ask("asks", "who ?"), InlayError, "(question, context)"),
        (Ask("tone", "x", top_k=0), InlayError, "top_k must be at least 1"),
        (Ask("tone", "x", threshold=2), InlayError, "threshold must be between 0 and 1"),
        (Ask("tone", "x \ud800"), InlayError, "cannot read this text"),
        (Ask("tone", LONG, long="refuse"), InlayError, "has 158 tokens, and 'tone' takes 64"),
        (Ask("asks", ("who ?", LONG), long="refuse"), InlayError, "takes 64"),
        (Ask("names", LONG, long="refuse"), InlayError, "tokens, and 'names' takes"),
    ],
)
def test_a_bad_ask_is_refused(engine, ask, error, says):
    with pytest.raises(error) as caught:
        engine.submit(ask)
    assert says in str(caught.value)
    assert engine._served.open == 0
    assert engine.submit(Ask("tone@1", "still here", long="refuse")).result(20)["task"] == "tone"


def test_a_long_text_is_cut_or_seen_in_windows(engine, twin, adapters):
    cut, windows = (engine.submit(Ask("tone", LONG, long=long)).result(20) for long in ("cut", "windows"))
    assert same(without_version(cut), offline(twin, adapters["tone"], LONG))
    assert not same(cut, windows)
    twin.load(replace(adapters["tone"], task="classification:temperature=3,long=windows"), "whole text")
    expected = twin.predict([("whole text", LONG)])[0]
    twin.unload("whole text")
    assert same(windows["scores"], expected["scores"])


def test_a_text_longer_than_a_batch(host, twin, library, adapters):
    with running(host, library, {"long": "long", "tone": "tone"}, tokens=48) as engine:
        pending = engine.submit(Ask("long", LONG * 3))
        other = engine.submit(Ask("tone", "a fine film"))
        assert same(without_version(pending.result(20)), offline(twin, adapters["long"], LONG * 3))
        assert other.result(20)["label"] in ("bad", "fine", "good")
        assert engine.counts().batches > 3


def test_explaining(engine):
    told = engine.submit(Ask("topics", "a fine film", explain=True)).result(20)
    assert told["tokens"] == ["[CLS]", "a", "fine", "film", "[SEP]"]
    assert len(told["alpha"]) == 5
    assert min(told["alpha"]) > 0
    words = engine.submit(Ask("names", "ana xylophone oslo", explain=True)).result(20)
    assert words["tokens"] == ["ana", "xylophone", "oslo"]
    assert len(words["alpha"]) == len(words["tags"]) == 3
    assert "alpha" not in engine.submit(Ask("tone", "a fine film", explain=True)).result(20)
    assert "alpha" not in engine.submit(Ask("topics", "a fine film")).result(20)


def test_a_full_queue_is_busy_and_says_for_how_long(host, library, adapters):
    with running(host, library, {"tone": "tone", "topics": "topics"}, queue=4) as engine:
        engine.submit(Ask("tone", "a fine film")).result(20)
        with held(host) as wait:
            first = engine.submit(Ask("tone", "a fine film"))
            wait()
            waiting = [engine.submit(Ask("tone", "a fine film")) for _ in range(4)]
            with pytest.raises(Busy) as caught:
                engine.submit(Ask("tone", "a fine film"))
            assert 0.05 <= caught.value.retry_after <= 60
            assert waiting[0].cancel()
            waiting[0] = engine.submit(Ask("topics", "a fine film"))
        assert all(one.result(20) for one in [first, *waiting])
        counts = engine.counts()
        assert (counts.refused, counts.cancelled, counts.answers, counts.waiting) == (1, 1, 6, 0)


def test_one_that_is_cancelled_never_runs(engine, host):
    with held(host) as wait:
        running_one = engine.submit(Ask("tone", "a fine film"))
        wait()
        pending = engine.submit(Ask("tone", "a fine film"))
        assert pending.cancel()
        assert not running_one.cancel()
    with pytest.raises(CancelledError):
        pending.result(20)
    assert running_one.result(20)
    counts = engine.counts()
    assert (counts.answers, counts.cancelled, counts.rows) == (1, 1, 1)
    assert engine._served.open == 0


def test_a_deadline(engine, host):
    with held(host) as wait:
        first = engine.submit(Ask("tone", "a fine film"), time.monotonic() + 60)
        wait()
        late = engine.submit(Ask("tone", "a fine film"), time.monotonic() + 0.001)
        there = engine.submit(Ask("tone", "a fine film"), time.monotonic() + 60)
        time.sleep(0.01)
    assert isinstance(late.exception(20), Late)
    assert first.result(20)
    assert there.result(20)
    past = engine.submit(Ask("tone", "a fine film"), time.monotonic() - 1)
    assert isinstance(past.exception(20), Late)
    assert engine.counts().late == 2


def test_a_deadline_passes_while_an_adapter_is_read(host, library, adapters, monkeypatch):
    read, gate = library.read_adapter, threading.Event()

    def slow(entry: Any) -> inlay.Adapter:
        if entry.name == "tone":
            assert gate.wait(20)
        return read(entry)

    monkeypatch.setattr(library, "read_adapter", slow)
    with running(host, library, {"tone": "tone", "topics": "topics"}) as engine:
        late = engine.submit(Ask("tone", "a fine film"), time.monotonic() + 0.05)
        waits = engine.submit(Ask("tone", "a fine film"))
        assert engine.submit(Ask("topics", "a fine film")).result(20)  # others are not held up
        assert isinstance(late.exception(5), Late)
        assert not waits.done()
        gate.set()
        assert waits.result(20)


def test_stopping_answers_what_was_accepted(host, library, adapters, right):
    engine = Engine(host, library)
    for name in TASKS:
        engine.serve(name, name)
    engine.start()
    pending = [engine.submit(Ask(*one)) for one in ASKS * 3]
    engine.stop()
    assert all(one.done() for one in pending)
    assert all(same(without_version(one.result()), e) for one, e in zip(pending, right * 3, strict=True))
    assert host.names == []
    assert not engine.ready
    with pytest.raises(Stopped):
        engine.submit(Ask("tone", "a fine film"))
    engine.stop()


def test_stopping_without_waiting(host, library, adapters):
    with running(host, library, {"tone": "tone"}) as engine:
        with held(host) as wait:
            first = engine.submit(Ask("tone", "a fine film"))
            wait()
            rest = [engine.submit(Ask("tone", "a fine film")) for _ in range(5)]
            stopping = threading.Thread(target=engine.stop, args=(False,))
            stopping.start()
            time.sleep(0.05)
        stopping.join(20)
        assert first.result(0)["label"]
        assert {type(one.exception(0)) for one in rest} == {Stopped}


def test_before_the_start_and_after_a_second_one(host, library, adapters):
    engine = Engine(host, library)
    engine.serve("tone", "tone")
    assert not engine.ready
    with pytest.raises(Stopped):
        engine.submit(Ask("tone", "a fine film"))
    engine.start()
    assert engine.ready
    with pytest.raises(InlayError, match="started before"):
        engine.start()
    engine.stop()


def test_one_that_fails_in_a_batch_fails_alone(host, library, adapters, monkeypatch, caplog):
    run, sizes = host.logits_on_cpu, []

    def fail(batch: Any, names: list[str]) -> Any:
        sizes.append(len(names))
        if "topics@1" in names:
            raise RuntimeError("a broken product")
        return run(batch, names)

    with running(host, library, {name: name for name in TASKS}, wait_ms=50.0) as engine:
        until(lambda: len(host.names) == len(TASKS))
        monkeypatch.setattr(host, "logits_on_cpu", fail)
        pending = [engine.submit(Ask(name, "ana meets bob")) for name in ("tone", "topics", "names")]
        assert [type(one.exception(20)) for one in pending] == [type(None), RuntimeError, type(None)]
        assert sizes == [3, 1, 1, 1]
        assert "an ask failed" in caplog.text
        monkeypatch.undo()
        assert engine.submit(Ask("topics", "ana meets bob")).result(20)
        assert engine.counts().tasks["topics"].errors == 1


def test_if_the_thread_dies_nothing_waits_for_ever(host, library, adapters, caplog):
    with running(host, library, {"tone": "tone"}) as engine:

        def die(*_: Any) -> None:
            raise SystemExit

        engine._runner.run = die  # type: ignore[method-assign]
        pending = engine.submit(Ask("tone", "a fine film"))
        assert isinstance(pending.exception(20), Stopped)
        engine._thread.join(20)  # type: ignore[union-attr]
        assert not engine.ready
        with pytest.raises(Stopped):
            engine.submit(Ask("tone", "a fine film"))
    assert "the engine has failed" in caplog.text


def test_a_warm_up_that_fails_is_told(host, library, monkeypatch, caplog):
    monkeypatch.setattr(host, "hidden", lambda *_: 1 / 0)
    engine = Engine(host, library)
    with pytest.raises(ZeroDivisionError):
        engine.start()
    assert not engine.ready
    engine.stop()


def test_weight_level_adapters_run_in_passes_of_their_own(host, library, adapters):
    heard: list[BatchDone] = []
    with running(host, library, {name: name for name in TASKS}, tokens=64, queue=4000) as engine:
        for name in TASKS:
            engine.submit(Ask(*next(one for one in ASKS if one[0] == name))).result(20)
        engine.listen(heard.append)
        with held(host) as wait:
            engine.submit(Ask("tone", "a fine film"))
            wait()
            heavy = [engine.submit(Ask(name, "we love our soup")) for _ in range(60) for name in ("whole", "pruned")]
            light = [engine.submit(Ask("tone", "we love our soup")) for _ in range(200)]
        assert all(one.result(60) for one in [*heavy, *light])
    assert {a.task for b in heard if b.alone for a in b.answers} == {"whole", "pruned"}
    assert all(len({a.task for a in b.answers}) == 1 for b in heard if b.alone)


def test_a_task_with_a_long_queue_does_not_starve_another(host, library, adapters):
    heard: list[BatchDone] = []
    with running(host, library, {"tone": "tone", "topics": "topics"}, tokens=64, queue=4000) as engine:
        for name in ("tone", "topics"):
            engine.submit(Ask(name, "a fine film")).result(20)
        engine.listen(heard.append)
        with held(host) as wait:
            engine.submit(Ask("tone", "a fine film"))
            wait()
            flood = [engine.submit(Ask("tone", "we love our soup")) for _ in range(1000)]
            one = engine.submit(Ask("topics", "we love our soup"))
        assert all(other.result(60) for other in [one, *flood])
    assert len(heard) > 50
    assert "topics" in {answer.task for answer in heard[1].answers}  # the first after the one that was held


def test_an_idle_engine_waits_for_company_and_one_with_a_backlog_does_not(host, library, adapters):
    asleep = threading.Event()
    with running(host, library, {"tone": "tone"}, wait_ms=100_000.0, tokens=25) as engine:
        sleep = engine._sleep

        def tell_and_sleep() -> None:
            asleep.set()
            sleep()

        engine._sleep = tell_and_sleep
        filled = [engine.submit(Ask("tone", "a fine film")) for _ in range(4)]
        asleep.clear()
        filled.append(engine.submit(Ask("tone", "a fine film")))  # a full batch: the adapter is in the bank after it
        assert [one.result(20) for one in filled]
        assert asleep.wait(20)
        pending = [engine.submit(Ask("tone", "a fine film")) for _ in range(4)]
        time.sleep(0.05)
        assert not any(one.done() for one in pending)
        with held(host) as wait:
            pending.append(engine.submit(Ask("tone", "a fine film")))  # the batch is full
            wait()
            more = engine.submit(Ask("tone", "a fine film"))
        assert {one.result(20) and one.batch for one in pending} == {5}
        assert more.result(20)


def test_what_is_counted_and_told(engine):
    heard: list[BatchDone] = []
    engine.listen(heard.append)
    engine.listen(lambda batch: 1 / 0)  # one who fails disturbs nobody
    found = [engine.submit(Ask("tone", "a fine film")).result(20) for _ in range(3)]
    engine.submit(Ask("names", "ana meets bob")).result(20)
    engine.submit(Ask("stars", "a fine film")).result(20)
    counts = engine.counts()
    tone = counts.tasks["tone"]
    assert (tone.answers, tone.errors, tone.scored) == (3, 0, 3)
    assert tone.labels == {found[0]["label"]: 3}
    assert tone.confidence == pytest.approx(3 * found[0]["score"])
    assert tone.seconds > 0
    assert counts.hits + counts.misses == counts.answers == 5
    assert (counts.rows, counts.waiting) == (5, 0)
    assert counts.batches == len(heard)
    assert sum(batch.tokens for batch in heard) == counts.tokens
    assert [a.task for b in heard for a in b.answers] == ["tone"] * 3 + ["names", "stars"]


def test_nothing_of_an_ask_is_kept(engine):
    gc.collect()
    gc.disable()  # nothing may wait for it
    try:
        pending = engine.submit(Ask("tone", "a fine film"))
        gone = [weakref.ref(piece.item) for piece in engine._queue._flow_of] or [weakref.ref(pending)]
        assert pending.result(20)
        del pending
        engine.submit(Ask("topics", "a fine film")).result(20)  # the thread has gone on
        until(lambda: all(one() is None for one in gone))
    finally:
        gc.enable()


class TestVersions:
    """Load, switch and withdraw."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> inlay.Library:
        return inlay.Library(tmp_path / "own")

    def test_a_switch_is_whole(self, host, twin, own):
        old, new = put(own, twin, "tone", "tone", 1), put(own, twin, "tone", "topics", 2)
        with running(host, own, {"tone": "tone@1"}) as engine:
            engine.submit(Ask("tone", "a fine film")).result(20)
            with held(host) as wait:
                first = engine.submit(Ask("tone", "a fine film"))
                wait()
                before = engine.submit(Ask("tone", "a fine film"))
                served = engine.serve("tone", "tone")
                after = engine.submit(Ask("tone", "a fine film"))
                assert engine.submit(Ask("tone@2", "a fine film"))
                with pytest.raises(SlotError):
                    engine.submit(Ask("tone@1", "a fine film"))
            assert (served.version, served.ref) == (2, "tone@2")
            engine.stop()
        assert [one.result(0)["version"] for one in (first, before, after)] == [1, 1, 2]
        for pending, adapter in zip((first, before, after), (old, old, new), strict=True):
            assert same(without_version(pending.result(0)), offline(twin, adapter, "a fine film"))

    def test_the_old_version_leaves_the_bank(self, host, twin, own):
        for seed in (1, 2):
            put(own, twin, "tone", "tone", seed)
        with running(host, own, {"tone": "tone@1", "also": "tone@1"}) as engine:
            engine.submit(Ask("tone", "a fine film")).result(20)
            engine.serve("tone", "tone@2")
            assert engine.submit(Ask("tone", "a fine film")).result(20)["version"] == 2
            assert sorted(host.names) == ["tone@1", "tone@2"]  # another name stands for it
            engine.withdraw("also")
            until(lambda: host.names == ["tone@2"])
            engine.withdraw("tone")
            until(lambda: host.names == [])
            with pytest.raises(SlotError, match="Valid: none"):
                engine.submit(Ask("tone", "a fine film"))
            with pytest.raises(SlotError):
                engine.withdraw("tone")

    def test_aliases_and_what_is_served(self, host, twin, own):
        for seed in (1, 2):
            put(own, twin, "tone", "tone", seed)
        own.alias("tone", "prod", 1)
        with running(host, own, {"tone": "tone@prod"}) as engine:
            assert engine.submit(Ask("tone@prod", "a fine film")).result(20)["version"] == 1
            (served,) = engine.tasks()
            assert (served.name, served.version, served.state, served.error) == ("tone", 1, "bank", None)
            assert served.card["labels"] == ["bad", "fine", "good"]
            own.alias("tone", "prod", 2)
            assert engine.serve("tone", "tone@prod").version == 2
            own.alias("tone", "best", 2)
            engine.serve("tone", "tone@best")
            assert engine.submit(Ask("tone@best", "a fine film")).result(20)["version"] == 2

    def test_what_cannot_be_served(self, host, twin, own):
        with running(host, own, {}) as engine:
            with pytest.raises(LibraryError, match="no adapter"):
                engine.serve("tone", "tone")
            twin.add("bare", "lora:rank=2")
            own.put(twin.adapter("bare"))
            twin.unload("bare")
            with pytest.raises(AdapterError, match="no head that gives answers"):
                engine.serve("bare", "bare")
            other = tiny.text_host(seed=5)
            put(own, other, "foreign", "tone", 0)
            with pytest.raises(AdapterError, match="belongs to the base"):
                engine.serve("foreign", "foreign")
            with pytest.raises(LibraryError, match="is not a valid name"):
                engine.serve("../x", "foreign")
            assert engine.tasks() == []

    def test_a_damaged_version_does_not_replace_a_good_one(self, host, twin, own):
        for seed in (1, 2):
            put(own, twin, "tone", "tone", seed)
        damage(own, "tone@2")
        with running(host, own, {"tone": "tone@1"}) as engine:
            with pytest.raises(DamagedError):
                engine.serve("tone", "tone@2")
            assert engine.submit(Ask("tone", "a fine film")).result(20)["version"] == 1

    def test_a_damaged_adapter_fails_alone_and_comes_back(self, host, twin, own):
        for name in ("tone", "topics"):
            put(own, twin, name, name, 1)
        content = damage(own, "tone")
        with running(host, own, {"tone": "tone", "topics": "topics"}) as engine:
            until(lambda: engine.tasks()[0].error)
            with pytest.raises(DamagedError):
                engine.submit(Ask("tone", "a fine film"))
            assert engine.submit(Ask("topics", "a fine film")).result(20)
            assert "is damaged" in (engine.tasks()[0].error or "")
            blob(own, "tone").write_bytes(content)
            engine.serve("tone", "tone")
            assert engine.submit(Ask("tone", "a fine film")).result(20)

    def test_asks_that_wait_for_a_damaged_adapter_are_told(self, host, twin, own, monkeypatch):
        put(own, twin, "tone", "tone", 1)
        damage(own, "tone")
        read, gate = own.read_adapter, threading.Event()

        def slow(entry: Any) -> inlay.Adapter:
            assert gate.wait(20)
            return read(entry)

        monkeypatch.setattr(own, "read_adapter", slow)
        with running(host, own, {"tone": "tone"}) as engine:
            pending = [engine.submit(Ask("tone", "a fine film")) for _ in range(3)]
            gate.set()
            assert {type(one.exception(20)) for one in pending} == {DamagedError}
            assert engine._served.open == 0


def blob(library: inlay.Library, ref: str) -> Path:
    return library.local / "blobs" / f"{library.find(ref).sha256}.safetensors"


def damage(library: inlay.Library, ref: str) -> bytes:
    path = blob(library, ref)
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)
