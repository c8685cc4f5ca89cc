"""The queue: nothing is lost, nothing overtakes its own kind, and tokens are shared evenly between those who wait."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.serve.fair_queue import FairQueue

QUANTUM = 16
LONGEST = 40
schedules = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.integers(1, LONGEST)),
        st.tuples(st.just("take"), st.integers(1, 100), st.frozensets(st.integers(0, 4))),
        st.tuples(st.just("remove"), st.integers(0, 50), st.just(0)),
    ),
    max_size=80,
)


@examples(300)
@given(schedules)
def test_nothing_is_lost_or_overtakes_its_own_kind(schedule):
    queue: FairQueue[int, tuple[int, int]] = FairQueue(1000, QUANTUM)
    waiting: dict[int, list[tuple[int, int]]] = {flow: [] for flow in range(5)}
    costs: dict[tuple[int, int], int] = {}
    for what, a, b in schedule:
        if what == "put":
            item = (a, len(costs))
            costs[item] = b
            queue.put(a, item, b)
            waiting[a].append(item)
        elif what == "remove":
            item = next((i for i in costs if i[1] == a), (9, 9))
            there = any(item in items for items in waiting.values())
            assert queue.remove(item) == there
            if there:
                waiting[item[0]].remove(item)
        else:
            taken = queue.take(a, lambda flow, shut=b: flow not in shut)  # type: ignore[misc]
            assert sum(costs[i] for i in taken) <= a or len(taken) == 1
            assert bool(taken) == any(items for flow, items in waiting.items() if flow not in b)
            for item in taken:
                assert item[0] not in b
                assert waiting[item[0]].pop(0) == item
        left = [item for items in waiting.values() for item in items]
        assert len(queue) == len(left)
        assert queue.cost == sum(costs[i] for i in left)
        assert set(queue.flows) == {flow for flow, items in waiting.items() if items}


class InTurn:
    """What the queue is not: first come, first served."""

    def __init__(self) -> None:
        self.items: deque[tuple[Any, int]] = deque()

    def put(self, flow: Any, item: Any, cost: int) -> None:
        self.items.append((item, cost))

    def take(self, budget: int) -> list[Any]:
        taken = []
        while self.items and budget >= self.items[0][1]:
            item, cost = self.items.popleft()
            budget -= cost
            taken.append(item)
        return taken


def shares(queue: Any, costs: dict[Any, list[int]], budget: int, batches: int) -> Counter[Any]:
    """The tokens each flow got while all of them had something waiting."""
    got: Counter[Any] = Counter()
    left = {flow: len(own) for flow, own in costs.items()}
    for flow, own in costs.items():
        for i, cost in enumerate(own):
            queue.put(flow, (flow, i), cost)
    for _ in range(batches):
        for flow, i in queue.take(budget):
            got[flow] += costs[flow][i]
            left[flow] -= 1
        if not all(left.values()):
            break
    return got


@examples(100)
@given(
    st.dictionaries(st.integers(0, 5), st.lists(st.integers(1, LONGEST), min_size=60, max_size=120), min_size=2),
    st.integers(LONGEST, 200),
    st.integers(1, 12),
)
def test_tokens_are_shared_evenly_between_those_who_wait(costs, budget, batches):
    got = shares(FairQueue(10_000, QUANTUM), costs, budget, batches)
    most, least = max(got[flow] for flow in costs), min(got[flow] for flow in costs)
    assert most - least <= 2 * (QUANTUM + LONGEST)


def test_the_check_above_can_fail():
    got = shares(InTurn(), {0: [8] * 100, 1: [8] * 100}, 80, 6)
    assert abs(got[0] - got[1]) > 2 * (QUANTUM + LONGEST)


def test_ten_thousand_items_of_one_do_not_keep_another_waiting():
    queue: FairQueue[str, tuple[str, int]] = FairQueue(20_000)
    for i in range(10_000):
        queue.put("flood", ("flood", i), 30)
    queue.take(4096)
    queue.put("one", ("one", 0), 30)
    assert ("one", 0) in queue.take(4096)


def test_long_items_get_no_more_than_short_ones():
    got = shares(FairQueue(10_000, QUANTUM), {"long": [LONGEST] * 200, "short": [2] * 4000}, 100, 50)
    assert abs(got["long"] - got["short"]) <= 2 * (QUANTUM + LONGEST)


def test_what_nobody_else_wanted_is_not_held_against_a_flow():
    queue: FairQueue[str, tuple[str, int]] = FairQueue(10_000, QUANTUM)
    for i in range(200):
        queue.put("early", ("early", i), 10)
    for _ in range(10):
        queue.take(100)
    for i in range(100):
        queue.put("later", ("later", i), 10)
    got = Counter(flow for flow, _ in queue.take(200))
    assert got.total() == 20
    assert abs(got["early"] - got["later"]) <= 2


def test_an_item_larger_than_the_budget_runs_alone():
    queue: FairQueue[str, int] = FairQueue(10, QUANTUM)
    for item, cost in enumerate((10, 500, 10)):
        queue.put("a", item, cost)
    queue.put("b", 3, 5)
    batches = [queue.take(50) for _ in range(4)]
    assert [1] in batches
    assert sorted(i for batch in batches for i in batch) == [0, 1, 2, 3]


def test_flows_that_may_not_run_keep_their_place():
    queue: FairQueue[str, str] = FairQueue(10, QUANTUM)
    for flow in "abc":
        queue.put(flow, flow, 10)
    assert queue.take(10, lambda flow: flow == "b") == ["b"]
    assert queue.take(100) == ["a", "c"]


def test_one_flow_at_a_time_in_turn():
    queue: FairQueue[str, tuple[str, int]] = FairQueue(100, QUANTUM)
    for i in range(8):
        for flow in "ab":
            queue.put(flow, (flow, i), 10)
    turns = [{flow for flow, _ in queue.take(20, flows=1)} for _ in range(8)]
    assert turns == [{"a"}, {"b"}] * 4


@pytest.mark.parametrize("room", [1, 2, 4])
def test_a_small_queue_takes_as_many_as_it_says(room):
    queue: FairQueue[str, int] = FairQueue(room)
    for i in range(room):
        assert not queue.full("a")
        queue.put("a", i, 1)
    assert queue.full("a")
    assert queue.full("b")
    queue.remove(0)
    assert not queue.full("b")


def test_one_that_floods_the_queue_leaves_room_for_others():
    queue: FairQueue[Any, Any] = FairQueue(1000)

    def fill(flow: Any) -> int:
        while not queue.full(flow):
            queue.put(flow, (flow, len(queue)), 1)
        return queue.length(flow)

    assert fill("flood") == 800
    assert fill("second") == 160
    assert not queue.full("third")
    assert queue.full("flood")


def test_deadlines():
    queue: FairQueue[str, str] = FairQueue(100)
    queue.put("a", "late", 1, deadline=5.0)
    queue.put("a", "no hurry", 1)
    queue.put("b", "later", 1, deadline=7.0)
    queue.put("b", "taken", 1, deadline=6.0)
    assert queue.next_deadline == 5.0
    assert queue.late(4.9) == []
    assert queue.late(5.0) == ["late"]
    assert queue.remove("taken")
    assert queue.late(8.0) == ["later"]
    assert queue.next_deadline is None
    assert queue.take(10) == ["no hurry"]


def test_a_flow_can_be_taken_out_whole():
    queue: FairQueue[str, int] = FairQueue(100)
    for i in range(4):
        queue.put("ab"[i % 2], i, 1)
    assert queue.remove_flow("a") == [0, 2]
    assert queue.remove_flow("a") == []
    assert (len(queue), queue.take(10)) == (2, [1, 3])
