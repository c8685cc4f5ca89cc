"""A step whose losses have not been looked at yet: on CUDA they come when the device has done it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inlay.training.job import Job


class Taken:
    """The runs of a step, and their losses once somebody waits for them."""

    def __init__(self, steps: Sequence[tuple[Job, int, float]], losses: Tensor):
        self.steps = steps
        """(run, step, learning rate)"""
        self._losses = losses
        self._done: Any = None
        if losses.is_cuda:
            with torch.cuda.device(losses.device):  # an event belongs to the device it is made on
                room = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
                self._losses = room.copy_(losses, non_blocking=True)
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._done.record()

    def losses(self) -> list[float]:
        """The loss of every run."""
        if self._done is not None:
            self._done.synchronize()
        return self._losses.tolist()
