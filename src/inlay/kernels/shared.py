"""What kernels and the plain code that gives the same numbers have in common; it needs no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

ADAMW_CHUNK = 4096
"""Numbers that one program of the optimiser's kernels steps."""
FP8_LARGEST = 448.0
FP8_TINY = 1e-12
"""No row's largest number is taken for less, when it is made fp8."""
MULTIPLIERS = (0x7FEB352D, 0x846CA68B - 2**32)
"""Of the hash lowbias32 (Wellons, 2018), as signed 32-bit numbers; so are the next two."""
TOKEN_STRIDE = 0x9E3779B1 - 2**32
COLUMN_STRIDE = 0x85EBCA6B - 2**32


def lane_cut(p: float) -> int:
    """An element is kept if its lane is not below this; 32768, beyond every lane, drops all."""
    return round(p * 65536) - 32768


def keep_scale(p: float) -> float:
    """What an element that is kept is multiplied with."""
    return 1 / (1 - p) if p < 1 else 0.0


def side_by_side(parts: list[Tensor]) -> Tensor:
    """What `torch.cat` along the last dimension gives; no copy if they lie so already, as attention's gradients do.

    For code that sees real tensors: within an operator, not within what is compiled.
    """
    first = parts[0]
    at = first.storage_offset()
    for part in parts:
        there = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not there or part.storage_offset() != at or part.stride() != first.stride() or part.stride(-1) != 1:
            return torch.cat(parts, -1)
        at += part.shape[-1]
    return first.as_strided((*first.shape[:-1], at - first.storage_offset()), first.stride())
