"""Stages that overlap: their order, how far they run ahead, and that whatever ends one ends all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inlay.cli.pipeline import ReadAhead, WriteBehind


class Counted:
    """Numbers that say how many were taken."""

    def __init__(self, end: int, error: BaseException | None = None):
        self.end, self.error, self.taken = end, error, 0

    def __iter__(self) -> Iterator[int]:
        for i in range(self.end):
            self.taken += 1
            yield i
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def settle(state: Counted) -> int:
    """How many are taken when nobody asks for more."""
    before = -1
    while before != state.taken:
        before = state.taken
        time.sleep(0.1)
    return before


def through(source: Counted, work: Any, middle: Callable[[int], int] = lambda item: item) -> None:
    """All stages."""
    with ReadAhead(source) as items, WriteBehind(work) as rest:
        for item in items:
            rest.give(middle(item))


def test_all_items_come_in_order():
    done: list[int] = []
    through(Counted(500), done.append, lambda item: item * 2)
    assert done == [i * 2 for i in range(500)]


def test_it_is_one_ahead():
    source = Counted(100)
    with ReadAhead(source) as items:
        assert settle(source) == 2  # one waits, one is on its way
        assert next(iter(items)) == 0
        assert settle(source) == 3
    assert source.taken <= 5  # leaving takes what was on its way


def test_without_a_thread_it_is_not_ahead():
    source, before = Counted(100), threading.active_count()
    with ReadAhead(source, here=True) as items:
        taken = iter(items)
        assert (next(taken), source.taken, threading.active_count()) == (0, 1, before)


def test_who_gives_is_one_ahead():
    go, given, done = threading.Event(), [], []

    def work(item: int) -> None:
        go.wait(10)
        done.append(item)

    def give(rest: WriteBehind[int]) -> None:
        for i in range(5):
            rest.give(i)
            given.append(i)

    with WriteBehind(work) as rest:
        other = threading.Thread(target=give, args=(rest,))
        other.start()
        while len(given) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        assert (given, done) == ([0, 1], [])  # one is worked on, one waits
        go.set()
        other.join()
    assert done == [0, 1, 2, 3, 4]


def test_what_stops_the_reading_comes_after_what_was_read():
    done: list[int] = []
    with pytest.raises(ValueError, match="line 4"):
        through(Counted(3, ValueError("line 4")), done.append)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_work_that_fails_ends_all(at: int, error: BaseException):
    done: list[int] = []
    source = Counted(10 if at == 9 else 10**9)

    def work(item: int) -> None:
        if item == at:
            raise error
        done.append(item)

    with pytest.raises(type(error)) as found:
        through(source, work)
    assert found.value is error
    assert done == list(range(at))
    assert source.taken <= at + 8


@pytest.mark.parametrize("error", [RuntimeError("device"), KeyboardInterrupt()])
def test_what_the_middle_raises_is_raised_once_and_what_was_given_is_finished(error: BaseException):
    done: list[int] = []

    def work(item: int) -> None:
        time.sleep(0.02)
        done.append(item)

    def middle(item: int) -> int:
        if item == 3:
            raise error
        return item

    with pytest.raises(type(error)) as found:
        through(Counted(10**9), work, middle)
    assert found.value is error
    assert done == [0, 1, 2]


def test_an_interrupt_at_the_end_waits_for_the_last_work(monkeypatch: pytest.MonkeyPatch):
    done: list[int] = []
    real, joins = threading.Thread.join, []

    def work(item: int) -> None:
        time.sleep(0.1)
        done.append(item)

    def join(thread: threading.Thread, *more: Any) -> None:
        joins.append(thread)
        if len(joins) == 1:
            raise KeyboardInterrupt
        real(thread, *more)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt), WriteBehind(work) as rest:
        rest.give(1)
    assert done == [1]
