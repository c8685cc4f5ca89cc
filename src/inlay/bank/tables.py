"""The numbers of one pass, in one buffer: one copy to the device, and one place for a captured graph to read from.

Sizes are rounded up to buckets, so that batches of about the same size have tables of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ALIGNED = 32
"""Numbers; every table starts at a multiple of 128 bytes."""


class Tables:
    """Named tensors of 32-bit numbers on the CPU, made to travel together."""

    def __init__(self, parts: Mapping[str, Tensor]):
        self.parts = {name: _narrow(part) for name, part in parts.items()}

    @property
    def shape(self) -> tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]:
        """What a captured graph depends on: everything but the numbers."""
        return tuple((name, part.dtype, tuple(part.shape)) for name, part in self.parts.items())

    def to(self, device: torch.device) -> dict[str, Tensor]:
        """The tables on a device."""
        if device.type == "cpu":
            return dict(self.parts)
        with torch.cuda.device(device):  # page-locked memory belongs to the current device
            return self.unpack(self.pack().to(device, non_blocking=True))

    def pack(self) -> Tensor:
        """All numbers in one buffer, in page-locked memory where a GPU will read it."""
        buffer = torch.empty(self._size(), dtype=torch.int32, pin_memory=torch.cuda.is_available())
        at = 0
        for part in self.parts.values():
            buffer[at : at + part.numel()] = part.reshape(-1).view(torch.int32)
            at += _rounded(part.numel())
        return buffer

    def unpack(self, buffer: Tensor) -> dict[str, Tensor]:
        """The tables as views of a buffer."""
        found, at = {}, 0
        for name, part in self.parts.items():
            found[name] = buffer[at : at + part.numel()].view(part.dtype).view(part.shape)
            at += _rounded(part.numel())
        return found

    def _size(self) -> int:
        return sum(_rounded(part.numel()) for part in self.parts.values())


def bucket(n: int, least: int) -> int:
    """A size rounded up to a multiple of `least`, or of a sixteenth of its leading power of two if that is more."""
    step = max(least, 1 << max(0, n.bit_length() - 5))
    return -(-n // step) * step


def _narrow(part: Tensor) -> Tensor:
    return part.to(torch.float32 if part.is_floating_point() else torch.int32)


def _rounded(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
