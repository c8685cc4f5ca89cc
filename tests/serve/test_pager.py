"""The pager: what is wanted comes, what was used longest ago goes, and one that is broken breaks nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny

import inlay
from inlay.errors import DamagedError, InlayError
from inlay.library.cards import Entry
from inlay.serve import pager as module
from inlay.serve.counters import Counters
from inlay.serve.pager import Pager

NAMES = [f"t{i}" for i in range(8)]


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return tiny.text_host()


@pytest.fixture
def library(host: inlay.Host, tmp_path: Path) -> inlay.Library:
    library = inlay.Library(tmp_path / "library")
    host.add("made", "lora:rank=2", labels=["no", "yes"])
    for i, name in enumerate(NAMES):
        tiny.shake(host, "made", i)
        library.put(replace(host.adapter("made"), name=name))
    host.unload("made")
    return library


@pytest.fixture
def make(host: inlay.Host, library: inlay.Library) -> Iterator[Callable[..., Pager]]:
    made: list[Pager] = []

    def build(resident: int = 3, remembered: int = 100, memory: int = 1 << 30) -> Pager:
        made.append(Pager(host, library, resident, remembered, memory, lambda: None, Counters()))
        return made[-1]

    yield build
    for one in made:
        one.close()
    assert host.names == []
    assert not host.forward.bank.slots


@pytest.fixture
def entries(library: inlay.Library) -> dict[str, Entry]:
    return {name: library.find(name) for name in NAMES}


def nobody(ref: str) -> bool:
    return False


def everybody(ref: str) -> bool:
    return True


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def load(pager: Pager, entry: Entry, waits: Callable[[str], bool] = everybody) -> None:
    """Want one, wait until it was read, load it."""
    pager.want([entry])
    until(lambda: pager.state([entry.ref]) != "disk")
    pager.load_some(waits, 0.0)


def resident(pager: Pager) -> list[str]:
    return sorted(name for name in NAMES if f"{name}@1" in pager)


def test_what_is_wanted_comes(make, entries, host):
    pager = make()
    assert pager.state(["t0@1"]) == "disk"
    load(pager, entries["t0"])
    assert pager.state(["t0@1"]) == "bank"
    assert host.names == ["t0@1"]
    assert pager.sizes() == (1, 1)
    assert (pager._counters.counts().reads, pager._counters.counts().loads, pager._counters.counts().evictions) == (
        1,
        1,
        0,
    )
    assert min(pager._counters.counts().read_seconds, pager._counters.counts().load_seconds) > 0


def test_the_one_used_longest_ago_leaves(make, entries, host):
    pager = make()
    for name in ("t0", "t1", "t2"):
        load(pager, entries[name])
    pager.used(["t1@1", "t2@1"])
    pager.used(["t0@1"])
    load(pager, entries["t3"], lambda ref: ref == "t3@1")
    assert resident(pager) == ["t0", "t2", "t3"]
    assert sorted(host.names) == ["t0@1", "t2@1", "t3@1"]
    assert pager.state(["t1@1"]) == "memory"
    reads = pager._counters.counts().reads
    load(pager, entries["t1"], lambda ref: ref == "t1@1")
    assert pager._counters.counts().reads == reads  # from memory


def test_one_that_is_waited_for_stays_until_it_has_run_and_is_wanted_again(make, entries):
    pager = make(resident=1)
    load(pager, entries["t0"])
    load(pager, entries["t1"])
    assert resident(pager) == ["t0"]  # it has not run
    pager.used(["t0@1"])
    pager.load_some(everybody, 0.0)
    assert resident(pager) == ["t1"]
    pager.used(["t1@1"])
    pager.load_some(everybody, 0.0)
    assert resident(pager) == ["t0"]  # nobody had to ask again


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("seed", [0, 1, 5, 7, 17, 19])
def test_ensembles_that_share_members_do_not_block_each_other(make, entries, library, seed, memory, monkeypatch):
    draw, most = random.Random(seed), 2 + seed % 2
    read = library.read_adapter

    def slow(entry: Entry) -> inlay.Adapter:
        time.sleep(random.random() * 0.004)
        return read(entry)

    monkeypatch.setattr(library, "read_adapter", slow)
    monkeypatch.setattr(module, "_AHEAD", 2 if seed == 5 else 32)  # fewer than some ensemble has members
    groups = [tuple(f"{name}@1" for name in draw.sample(NAMES, draw.randint(1, most))) for _ in range(16)]
    pager = make(resident=most, remembered=most, memory=memory)

    def waits(needed: str | tuple[str, ...]) -> bool:
        return any(needed == group or needed in group for group in groups)

    for group in groups:
        pager.want([entries[ref.partition("@")[0]] for ref in group])
    end = time.monotonic() + 20
    while groups:
        pager.load_some(waits, 0.0)
        for group in [group for group in groups if all(ref in pager for ref in group)]:
            pager.used(group)
            groups.remove(group)
        assert time.monotonic() < end, groups
        time.sleep(0.001)


def test_nobody_leaves_for_one_that_nobody_waits_for(make, entries):
    pager = make(resident=1)
    load(pager, entries["t0"])
    pager.used(["t0@1"])
    load(pager, entries["t1"], nobody)
    assert resident(pager) == ["t0"]
    load(pager, entries["t1"], lambda ref: ref == "t1@1")
    assert resident(pager) == ["t1"]


def test_those_asked_for_come_before_those_hoped_for(make, entries):
    pager = make(resident=8)
    for name in NAMES[:6]:
        pager.want([entries[name]], asked=False)
    pager.want([entries["t7"]])
    pager.want([entries["t5"]])
    until(lambda: pager._counters.counts().reads == 7)
    for name in ("t7", "t5", "t0"):
        assert pager.load_some(everybody, 0.0)
        assert f"{name}@1" in pager


def test_memory_holds_what_was_used_last(make, entries):
    pager = make(resident=1, remembered=3)
    for name in NAMES:
        load(pager, entries[name], lambda ref, name=name: ref == f"{name}@1")
    assert pager.sizes() == (1, 3)
    assert [name for name in NAMES if pager.state([f"{name}@1"]) == "memory"] == ["t5", "t6"]
    assert pager._counters.counts().evictions == 7


def test_one_that_leaves_the_bank_was_used_a_moment_ago(make, entries):
    pager = make(resident=2, remembered=3)
    for name in NAMES[:4]:  # t0 leaves for t2, t1 for t3
        load(pager, entries[name], lambda ref, name=name: ref == f"{name}@1")
        pager.used([f"{name}@1"])
    assert resident(pager) == ["t2", "t3"]
    assert pager.state(["t0@1"]) == "memory"  # rather than t1, which was in the bank when t3 was read


def test_memory_is_bounded_by_bytes(make, entries):
    pager = make(resident=1, memory=3 * entries["t0"].bytes)
    for name in NAMES:
        load(pager, entries[name], lambda ref, name=name: ref == f"{name}@1")
    assert 1 <= pager.sizes()[1] < 8
    roomy = make(resident=1)
    for name in NAMES:
        load(roomy, entries[name], lambda ref, name=name: ref == f"{name}@1")
    assert roomy.sizes()[1] == 8


def test_much_that_is_wanted_does_not_fill_memory(make, entries, monkeypatch):
    monkeypatch.setattr(module, "_AHEAD", 2)
    pager = make(resident=8)
    for entry in entries.values():
        pager.want([entry])
    until(lambda: pager._counters.counts().reads == 2)
    time.sleep(0.05)
    assert pager.sizes() == (0, 2)
    for _ in range(100):
        pager.load_some(everybody, 0.0)
        time.sleep(0.005)
        assert pager.sizes()[1] - pager.sizes()[0] <= 2
    assert resident(pager) == NAMES


def damage(library: inlay.Library, entry: Entry) -> bytes:
    path = library.local / "blobs" / f"{entry.sha256}.safetensors"
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_a_damaged_adapter_fails_alone_and_is_tried_again(make, entries, library, monkeypatch):
    pager = make()
    content = damage(library, entries["t0"])
    pager.want([entries["t0"]])
    until(lambda: pager.error("t0@1"))
    assert isinstance(pager.error("t0@1"), DamagedError)
    assert pager.newly_broken() == ["t0@1"]
    assert pager.newly_broken() == []
    load(pager, entries["t1"])
    assert resident(pager) == ["t1"]
    (library.local / "blobs" / f"{entries['t0'].sha256}.safetensors").write_bytes(content)
    pager.want([entries["t0"]])  # not yet
    assert "t0@1" not in pager._requested
    monkeypatch.setattr(module, "RETRY", 0.0)
    assert pager.error("t0@1") is None
    load(pager, entries["t0"])
    assert resident(pager) == ["t0", "t1"]


def test_reading_on_purpose_says_what_is_wrong_and_clears_it(make, entries, library):
    pager = make()
    content = damage(library, entries["t0"])
    with pytest.raises(DamagedError):
        pager.read(entries["t0"])
    pager.want([entries["t0"]])
    until(lambda: pager.error("t0@1"))
    (library.local / "blobs" / f"{entries['t0'].sha256}.safetensors").write_bytes(content)
    pager.read(entries["t0"])
    assert pager.error("t0@1") is None
    assert pager.state(["t0@1"]) == "memory"


def test_one_that_cannot_be_loaded_fails_alone(make, entries, host, monkeypatch):
    pager = make()
    enter = host.enter

    def refuse(name: str, *how: Any) -> None:
        if name == "t0@1":
            raise RuntimeError("no room")
        enter(name, *how)

    monkeypatch.setattr(host, "enter", refuse)
    load(pager, entries["t0"])
    load(pager, entries["t1"])
    assert resident(pager) == ["t1"]
    assert isinstance(pager.error("t0@1"), InlayError)
    assert "no room" in str(pager.error("t0@1"))


def test_a_slow_read_holds_nobody_up(make, entries, library, monkeypatch):
    read, gate = library.read_adapter, threading.Event()

    def slow(entry: Entry) -> inlay.Adapter:
        if entry.name == "t0":
            assert gate.wait(10)
        return read(entry)

    monkeypatch.setattr(library, "read_adapter", slow)
    pager = make()
    pager.want([entries["t0"]])
    load(pager, entries["t1"])
    assert resident(pager) == ["t1"]
    gate.set()
    until(lambda: pager.state(["t0@1"]) == "memory")


def test_one_that_is_dropped_leaves_the_bank_and_is_wanted_no_more(make, entries):
    pager = make()
    load(pager, entries["t0"])
    pager.want([entries["t1"]])
    for ref in ("t0@1", "t1@1", "t2@1"):
        pager.drop(ref)
    time.sleep(0.05)
    assert not pager.load_some(everybody, 1.0)
    assert resident(pager) == []


def test_after_the_end_nothing_comes(make, entries, host):
    pager = make()
    load(pager, entries["t0"])
    pager.close()
    assert host.names == []
    pager.want([entries["t1"]])
    assert not pager.load_some(everybody, 1.0)
