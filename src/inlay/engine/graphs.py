"""CUDA graphs: work that comes again in the same shape is recorded once and replayed, without Python in between.

The first time, work runs as it is, which also warms it up; the second time it is recorded. What a recording gives lives
in its own memory and holds until the next run: copy what must stay.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.bank.records import on_device, pack, unpack

Work = Callable[[Any], Any]
"""Work on a plan that is on the device."""
_MOST = 128
"""Recordings that are kept."""


GroupState = tuple[int, int]
"""As `Group.state` has it."""


@dataclass
class _Recording:
    buffer: Tensor
    graph: torch.cuda.CUDAGraph
    found: Any


@dataclass(frozen=True)
class Shape:
    """What a recording depends on beside the numbers in its plan."""

    key: Hashable
    groups: frozenset[GroupState] = frozenset()
    """Those whose stacks it reads or writes."""


class Graphs:
    """Recordings by shape."""

    def __init__(self, device: torch.device):
        self.device = device
        self.on = device.type == "cuda"
        """Whether to record at all."""
        self._seen: OrderedDict[Shape, _Recording | None] = OrderedDict()
        self._never: set[Shape] = set()
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, plan: Any, shape: Shape | None, run: Work, before: Callable[[], None] | None = None) -> Any:
        """Run work on a plan, from a recording if there is one.

        Args:
            plan: a record of arrays.
            shape: None if it cannot be recorded.
            before: to be done before a recording, which can neither wait nor take memory by itself.
        """
        with self.here():
            if not self.on or shape is None:
                return run(on_device(plan, self.device))
            if shape not in self._seen:
                self._remember(shape, None)
                return run(on_device(plan, self.device))
            recording = self._seen[shape] or self._record(shape, plan, run, before)
            if recording is None:
                return run(on_device(plan, self.device))
            self._seen.move_to_end(shape)
            recording.buffer.copy_(pack(plan), non_blocking=True)
            recording.graph.replay()
            return recording.found

    def here(self) -> AbstractContextManager[object]:
        """Page-locked memory, streams and recordings are the current device's, which need not be this one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def keep(self, groups: Collection[GroupState]) -> None:
        """Forget recordings that use any other group: its stacks have moved, or are gone."""
        alive = frozenset(groups)
        for shape in [shape for shape in self._seen if not shape.groups <= alive]:
            del self._seen[shape]
        if not any(self._seen.values()):  # memory that recordings share goes with the last of them
            self._pool = None
        self._never = {shape for shape in self._never if shape.groups <= alive}

    def clear(self) -> None:
        """Forget all recordings."""
        self._seen.clear()
        self._never.clear()
        self._pool = None

    def _record(self, shape: Shape, plan: Any, run: Work, before: Callable[[], None] | None) -> _Recording | None:
        """None for work that turns out not to be recordable: a task from outside may wait for the device, say."""
        if shape in self._never:
            return None
        if before is not None:
            before()
        try:
            recording = self._capture(plan, run)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._never.add(shape)
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"this work cannot be recorded, and runs step by step: {reason}", stacklevel=2)
            return None
        self._remember(shape, recording)
        return recording

    def _capture(self, plan: Any, run: Work) -> _Recording:
        buffer = pack(plan).to(self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # torch's own stream for recordings is one for all devices: that of the first that recorded
        self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            found = run(unpack(plan, buffer))
        self._pool = self._pool or graph.pool()
        return _Recording(buffer, graph, found)

    def _remember(self, shape: Shape, recording: _Recording | None) -> None:
        self._seen[shape] = recording
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)
