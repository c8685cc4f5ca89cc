"""Constants and functions shared by kernels and by the plain code with the same results; they need no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

ADAMW_CHUNK = 4096
"""How many numbers one program of the optimiser's kernels updates."""
FP8_LARGEST = 448.0
FP8_TINY = 1e-12
"""The least that a row's largest number counts as, when the row is converted to fp8."""
MULTIPLIERS = (0x7FEB352D, 0x846CA68B - 2**32)
"""The factors of the hash lowbias32 (Wellons, 2018), as signed 32-bit numbers, like the next two."""
TOKEN_STRIDE = 0x9E3779B1 - 2**32
COLUMN_STRIDE = 0x85EBCA6B - 2**32


def lane_cut(p: float) -> int:
    """An element is kept if its lane is not below this; 32768, beyond every lane, drops all."""
    return round(p * 65536) - 32768


def keep_scale(p: float) -> float:
    """The factor of an element that is kept."""
    return 1 / (1 - p) if p < 1 else 0.0


def side_by_side(parts: list[Tensor]) -> Tensor:
    """`torch.cat` along the last dimension, without a copy if the parts lie side by side, as attention's gradients do.

    It needs real tensors: use it within an operator, not in compiled code.
    """
    first = parts[0]
    at = first.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.storage_offset() != at or part.stride() != first.stride() or part.stride(-1) != 1:
            return torch.cat(parts, -1)
        at += part.shape[-1]
    return first.as_strided((*first.shape[:-1], at - first.storage_offset()), first.stride())
