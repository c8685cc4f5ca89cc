"""When work is recorded, replayed and forgotten; with a fake in place of CUDA graphs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inlay.bank.records import Record, pack, unpack
from inlay.engine import graphs as module
from inlay.engine.graphs import Graphs, Shape


class Fake(Graphs):
    """Records by keeping the function and its views of the buffer."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True
        self.recorded = 0

    def _capture(self, plan: Any, run: Any) -> Any:
        buffer = pack(plan)
        found = run(unpack(plan, buffer))
        self.recorded += 1

        class Graph:
            def replay(self) -> None:
                found.copy_(run(unpack(plan, buffer)))

        return module._Recording(buffer, Graph(), found)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Numbers(Record):
    x: Any


def plan(*numbers: int) -> Numbers:
    return Numbers(np.array(numbers))


def double(plan: Numbers) -> Tensor:
    return plan.x * 2


def ask(graphs: Graphs, numbers: list[int], group: int = 0, shape: Any = "a", run: Any = double) -> list[int]:
    whole = None if shape is None else Shape(shape, frozenset({(group, 0)}))
    return graphs.run(plan(*numbers), whole, run).tolist()


def test_the_second_time_is_recorded_and_later_ones_are_replayed_with_their_own_numbers():
    graphs = Fake()
    assert ask(graphs, [1, 2]) == [2, 4]
    assert graphs.recorded == 0
    assert ask(graphs, [3, 4]) == [6, 8]
    assert graphs.recorded == 1
    assert ask(graphs, [5, 6], run=None) == [10, 12]  # what is replayed is what was recorded
    assert graphs.recorded == 1


def test_what_used_a_group_that_is_gone_is_forgotten_and_nothing_else():
    graphs = Fake()
    for group in (1, 1, 2, 2):
        ask(graphs, [1], group)
    assert graphs.recorded == 2
    graphs.keep([(2, 0), (3, 0)])
    assert ask(graphs, [4], 2, run=None) == [8]
    assert ask(graphs, [4], 1) == [8]
    assert graphs.recorded == 2
    graphs.keep([(2, 1)])  # its stacks have grown
    assert ask(graphs, [4], 2) == [8]
    assert graphs.recorded == 2


def test_memory_that_recordings_share_goes_with_the_last_of_them():
    graphs = Fake()
    for group in (1, 1, 2, 2):
        ask(graphs, [1], group)
    graphs._pool = "a pool"
    graphs.keep([(2, 0)])
    assert graphs._pool == "a pool"
    graphs.keep([])
    assert graphs._pool is None


def test_without_a_shape_nothing_is_recorded():
    graphs = Fake()
    for _ in range(3):
        ask(graphs, [1])
        ask(graphs, [1], shape=None)
    assert graphs.recorded == 1
    off = Fake()
    off.on = False
    assert [ask(off, [1]) for _ in range(3)] == [[2]] * 3
    assert off.recorded == 0


def test_work_that_cannot_be_recorded_runs_without(monkeypatch):
    graphs, tried, ready = Fake(), [], []

    def fails(*_: Any) -> Any:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    monkeypatch.setattr(graphs, "_capture", fails)
    two, shape = plan(2), Shape("a")
    assert graphs.run(two, shape, double).tolist() == [4]
    with pytest.warns(UserWarning, match="step by step: operation not permitted when stream is capturing$"):
        assert graphs.run(two, shape, double, lambda: ready.append(1)).tolist() == [4]
    assert graphs.run(two, shape, double, lambda: ready.append(1)).tolist() == [4]
    assert (tried, ready) == ([1], [1])


def test_memory_that_runs_out_is_not_taken_for_work_that_cannot_be_recorded(monkeypatch):
    graphs = Fake()
    ask(graphs, [1])

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("so full")

    monkeypatch.setattr(graphs, "_capture", full)
    with pytest.raises(torch.OutOfMemoryError):
        ask(graphs, [1])


def test_what_was_not_used_for_longest_goes(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 2)
    graphs = Fake()
    for shape in ("a", "a", "b", "b", "a", "c", "c"):
        ask(graphs, [1], shape=shape)
    assert graphs.recorded == 3
    ask(graphs, [1], shape="a")
    assert graphs.recorded == 3
    ask(graphs, [1], shape="b")
    ask(graphs, [1], shape="b")
    assert graphs.recorded == 4


def test_recordings_are_made_and_replayed_on_their_own_device(monkeypatch):
    """Whatever device is current: its streams, its page-locked memory, its graphs."""
    current, seen = [0], []

    class On:
        def __init__(self, device: Any):
            self.index = torch.device(device).index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_: Any) -> None:
            current[0] = self.before

    class Graph:
        def replay(self) -> None:
            seen.append(("replay", current[0]))

        def pool(self) -> None:
            return None

    def recording(graph: Any, pool: Any, stream: Any) -> Any:
        seen.append(("record", current[0], stream))
        return contextlib.nullcontext()

    fakes = {"device": On, "CUDAGraph": Graph, "graph": recording, "Stream": lambda device: f"stream of {device}"}
    for name, fake in {**fakes, "synchronize": lambda device: seen.append(("wait", device.index))}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    graphs = Graphs(torch.device("cuda:1"))
    monkeypatch.setattr(module, "pack", lambda plan: Packed(plan.x))
    monkeypatch.setattr(module, "on_device", lambda plan, device: plan)
    monkeypatch.setattr(module, "unpack", lambda plan, buffer: plan)
    for _ in range(3):
        graphs.run(plan(1), Shape("a"), lambda plan: seen.append(("run", current[0])))
    recorded = [("wait", 1), ("record", 1, "stream of cuda:1"), ("run", 1), ("replay", 1)]
    assert seen == [("run", 1), *recorded, ("replay", 1)]
    assert current == [0]


class Packed:
    """A buffer that is on any device."""

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    def to(self, device: torch.device) -> Packed:
        return self

    def copy_(self, other: Packed, non_blocking: bool) -> None:
        assert non_blocking
