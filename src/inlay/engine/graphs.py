"""CUDA graphs: work that comes again in the same shape is recorded once and replayed, without Python in between.

The first time, work runs unrecorded, which also warms it up; the second time it is recorded. The results of a recording
lie in its own memory and are overwritten by the next run: copy what you keep.
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
from inlay.errors import first_line

Work = Callable[[Any], Any]
"""Work on a plan that is on the device."""
_MOST = 128
"""How many recordings are kept."""
GroupState = tuple[int, int]
"""A `Group.state`."""


@dataclass
class _Recording:
    buffer: Tensor
    graph: torch.cuda.CUDAGraph
    result: Any


@dataclass(frozen=True)
class Shape:
    """What a recording depends on, apart from the numbers in its plan."""

    key: Hashable
    groups: frozenset[GroupState] = frozenset()
    """The groups whose stacks it reads or writes."""


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
            before: called before a recording, which can neither wait nor allocate memory.
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
            return recording.result

    def here(self) -> AbstractContextManager[object]:
        """Make this device the current one, to which page-locked memory, streams and recordings belong."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def keep(self, groups: Collection[GroupState]) -> None:
        """Forget recordings that use any other group: its stacks have moved, or are gone."""
        alive = frozenset(groups)
        for shape in [shape for shape in self._seen if not shape.groups <= alive]:
            del self._seen[shape]
        if not any(self._seen.values()):  # the memory that recordings share is freed with the last of them
            self._pool = None
        self._never = {shape for shape in self._never if shape.groups <= alive}

    def clear(self) -> None:
        """Forget all recordings."""
        self._seen.clear()
        self._never.clear()
        self._pool = None

    def _record(self, shape: Shape, plan: Any, run: Work, before: Callable[[], None] | None) -> _Recording | None:
        """None for work that turns out not to be recordable: a plugin's task may wait for the device, say."""
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
            reason = first_line(error)
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
            result = run(unpack(plan, buffer))
        self._pool = self._pool or graph.pool()
        return _Recording(buffer, graph, result)

    def _remember(self, shape: Shape, recording: _Recording | None) -> None:
        self._seen[shape] = recording
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)
