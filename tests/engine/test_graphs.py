"""When work is recorded, replayed and forgotten; with a fake in place of CUDA graphs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from inlay.bank.tables import Tables
from inlay.engine import graphs as module
from inlay.engine.graphs import Graphs


class Fake(Graphs):
    """Records by keeping the function and its views of the buffer."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.on = True
        self.recorded = 0

    def _capture(self, tables: Tables, run: Any) -> Any:
        buffer = tables.pack()
        found = run(tables.unpack(buffer))
        self.recorded += 1

        class Graph:
            def replay(self) -> None:
                found.copy_(run(tables.unpack(buffer)))

        return module._Recording(buffer, Graph(), found)  # type: ignore[arg-type]


def double(tables: dict[str, Tensor]) -> Tensor:
    return tables["x"] * 2


def ask(graphs: Graphs, numbers: list[int], version: int = 0, shape: Any = "a", run: Any = double) -> list[int]:
    return graphs.run(version, shape, Tables({"x": torch.tensor(numbers)}), run).tolist()


def test_the_second_time_is_recorded_and_later_ones_are_replayed_with_their_own_numbers():
    graphs = Fake()
    assert ask(graphs, [1, 2]) == [2, 4]
    assert graphs.recorded == 0
    assert ask(graphs, [3, 4]) == [6, 8]
    assert graphs.recorded == 1
    assert ask(graphs, [5, 6], run=None) == [10, 12]  # what is replayed is what was recorded
    assert graphs.recorded == 1


def test_another_version_forgets_and_no_shape_is_never_recorded():
    graphs = Fake()
    for _ in range(3):
        ask(graphs, [1])
        ask(graphs, [1], shape=None)
    assert graphs.recorded == 1
    for _ in range(2):
        assert ask(graphs, [4], version=1) == [8]
    assert graphs.recorded == 2
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
    tables = Tables({"x": torch.tensor([2])})
    assert graphs.run(0, "a", tables, double).tolist() == [4]
    with pytest.warns(UserWarning, match="step by step: operation not permitted when stream is capturing$"):
        assert graphs.run(0, "a", tables, double, lambda: ready.append(1)).tolist() == [4]
    assert graphs.run(0, "a", tables, double, lambda: ready.append(1)).tolist() == [4]
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
    monkeypatch.setattr(Tables, "pack", lambda tables: Packed(tables.parts["x"]))
    monkeypatch.setattr(Tables, "to", lambda tables, device: dict(tables.parts))
    monkeypatch.setattr(Tables, "unpack", lambda tables, buffer: dict(tables.parts))
    for _ in range(3):
        graphs.run(0, "a", Tables({"x": torch.tensor([1])}), lambda tables: seen.append(("run", current[0])))
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
