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
            self._losses = torch.empty(losses.shape, pin_memory=True).copy_(losses, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def losses(self) -> list[float]:
        """The loss of every run."""
        if self._done is not None:
            self._done.synchronize()
        return self._losses.tolist()
