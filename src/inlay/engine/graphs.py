"""CUDA graphs: work that comes again in the same shape is recorded once and replayed, without Python in between.

The first time, work runs as it is, which also warms it up; the second time it is recorded. What a recording gives lives
in its own memory and holds until the next run: copy what must stay.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.bank.tables import Tables

Run = Callable[[dict[str, Tensor]], Any]
_MOST = 128
"""Recordings that are kept."""


@dataclass
class _Recording:
    buffer: Tensor
    graph: torch.cuda.CUDAGraph
    found: Any


class Graphs:
    """Recordings by shape."""

    def __init__(self, device: torch.device):
        self.device = device
        self.on = device.type == "cuda"
        """Whether to record at all."""
        self._seen: OrderedDict[Hashable, _Recording | None] = OrderedDict()
        self._never: set[Hashable] = set()
        self._version: Hashable = None
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def run(
        self,
        version: Hashable,
        shape: Hashable,
        tables: Tables,
        run: Run,
        before: Callable[[], None] | None = None,
    ) -> Any:
        """Run work on its tables, from a recording if there is one.

        Args:
            version: recordings of another version are dropped: the tensors they use have moved.
            shape: what the work depends on beside the numbers in its tables; None if it cannot be recorded.
            before: to be done before a recording, which can neither wait nor take memory by itself.
        """
        with self.here():
            return self._run(version, shape, tables, run, before)

    def here(self) -> AbstractContextManager[object]:
        """Page-locked memory, streams and recordings are the current device's, which need not be this one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _run(
        self, version: Hashable, shape: Hashable, tables: Tables, run: Run, before: Callable[[], None] | None
    ) -> Any:
        if version != self._version:
            self.clear()
            self._version = version
        if not self.on or shape is None:
            return run(tables.to(self.device))
        if shape not in self._seen:
            self._remember(shape, None)
            return run(tables.to(self.device))
        recording = self._seen[shape] or self._record(shape, tables, run, before)
        if recording is None:
            return run(tables.to(self.device))
        self._seen.move_to_end(shape)
        recording.buffer.copy_(tables.pack(), non_blocking=True)
        recording.graph.replay()
        return recording.found

    def clear(self) -> None:
        """Forget all recordings."""
        self._seen.clear()
        self._never.clear()
        self._pool = None

    def _record(
        self, shape: Hashable, tables: Tables, run: Run, before: Callable[[], None] | None
    ) -> _Recording | None:
        """None for work that turns out not to be recordable: a task from outside may wait for the device, say."""
        if shape in self._never:
            return None
        if before is not None:
            before()
        try:
            recording = self._capture(tables, run)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._never.add(shape)
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"this work cannot be recorded, and runs step by step: {reason}", stacklevel=2)
            return None
        self._remember(shape, recording)
        return recording

    def _capture(self, tables: Tables, run: Run) -> _Recording:
        buffer = tables.pack().to(self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # torch's own stream for recordings is one for all devices: that of the first that recorded
        self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            found = run(tables.unpack(buffer))
        self._pool = self._pool or graph.pool()
        return _Recording(buffer, graph, found)

    def _remember(self, shape: Hashable, recording: _Recording | None) -> None:
        self._seen[shape] = recording
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)
