"""Helpers to launch the routed kernels. Blocks are chosen by rule, never tuned by trial."""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import triton
from torch import Tensor


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that a kernel writes in full; tests fill it with NaN first."""
    return torch.empty(shape, dtype=dtype, device=device)


def rows(x: Tensor) -> Tensor:
    """A tensor whose rows are contiguous, at any distance; gradients of a plain sum are not."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def device_of(x: Tensor) -> AbstractContextManager[None]:
    """Make the device of `x` the current one, on which kernels start."""
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]


def fit(width: int, most: int) -> int:
    """The block for a width; a product needs at least 16."""
    return int(min(most, max(16, triton.next_power_of_2(width))))


def precision(x: Tensor) -> str:
    """The precision of products: fp32 is not rounded to fewer bits."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def programs(tokens: int, tiles: Tensor, block: int) -> int:
    """How many programs: one for each tile, and those that write the zeros of tokens in no tile."""
    return int(tiles.shape[0] + triton.cdiv(tokens, block))


def tables(tiles: Tensor, entry: Tensor, bounds: Tensor, tokens: int) -> tuple[Tensor | int, ...]:
    """The arguments that all kernels over tiles share."""
    return tiles, entry, bounds, tiles.shape[0], entry.shape[0], tokens
