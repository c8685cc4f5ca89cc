"""Whose turn it is: adapters that run alone get a third of the time while others wait, and all of it otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from inlay.serve.scheduler import Scheduler

SECONDS = {True: 0.5, False: 0.02}
"""Of a pass alone, and of a mixed batch."""


class Version:
    def __init__(self, ref: str, alone: bool):
        self.ref, self.refs, self.alone = ref, (ref,), alone


def fill(scheduler: Scheduler, of: Version, number: int, tokens: int = 10) -> None:
    for _ in range(number):
        scheduler.queue.put(of, Piece(of, tokens), tokens)  # type: ignore[arg-type]


class Piece:
    def __init__(self, of: Version, tokens: int):
        self.item, self.tokens = SimpleNamespace(version=of), tokens


def run(scheduler: Scheduler) -> tuple[bool, set[str], float]:
    """Whether a batch was one alone, whose it was, and how long it took."""
    pieces = scheduler.take()
    kinds = {piece.item.version.alone for piece in pieces}
    assert len(kinds) == 1
    (alone,) = kinds
    scheduler.record(pieces, SECONDS[alone])
    return alone, {piece.item.version.ref for piece in pieces}, SECONDS[alone]


def everywhere(ref: str) -> bool:
    return True


def test_a_third_of_the_time_while_others_wait():
    scheduler = Scheduler(10**6, 100, everywhere)
    for one in (Version("heavy", True), Version("heavier", True), Version("light", False), Version("lighter", False)):
        fill(scheduler, one, 8000)
    batches = [run(scheduler) for _ in range(1000)]
    share = sum(took for alone, _, took in batches if alone) / sum(took for *_, took in batches)
    assert share == pytest.approx(1 / 3, abs=0.05)
    assert all(len(refs) == 1 for alone, refs, _ in batches if alone)
    assert all(refs == {"light", "lighter"} for alone, refs, _ in batches if not alone)
    heavy = [refs.copy().pop() for alone, refs, _ in batches if alone]
    assert abs(heavy.count("heavy") - heavy.count("heavier")) <= 1


def test_all_of_the_time_when_nobody_else_waits():
    scheduler = Scheduler(10**6, 100, everywhere)
    heavy, light = Version("heavy", True), Version("light", False)
    fill(scheduler, heavy, 200)
    assert all(run(scheduler)[0] for _ in range(20))
    fill(scheduler, light, 2000)
    assert sum(run(scheduler)[0] for _ in range(60)) >= 1  # it is not held against it


def test_a_pass_alone_is_small():
    scheduler = Scheduler(10**6, 100, everywhere)
    fill(scheduler, Version("heavy", True), 100)
    assert len(scheduler.take()) == 2
    fill(scheduler, Version("light", False), 100)
    assert len(scheduler.take()) == 10


def test_only_what_is_in_the_bank_runs():
    here = {"light"}
    scheduler = Scheduler(10**6, 100, here.__contains__)
    for one in (Version("heavy", True), Version("light", False), Version("away", False)):
        fill(scheduler, one, 5)
    assert run(scheduler) == (False, {"light"}, 0.02)
    assert scheduler.take() == []
    here.add("heavy")
    assert run(scheduler)[:2] == (True, {"heavy"})


def test_how_long_what_waits_will_take():
    scheduler = Scheduler(10**6, 100, everywhere)
    fill(scheduler, Version("light", False), 110)
    assert scheduler.seconds() == 1.0  # nobody knows
    run(scheduler)
    assert scheduler.seconds() == pytest.approx(1000 / (100 / 0.02))
    fill(scheduler, Version("light", False), 100_000)
    assert scheduler.seconds() == 60.0
