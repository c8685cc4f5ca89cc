"""Sums over each place's tokens: gradients of the stacks' matrices, biases and vectors.

weight_grad(x [T, in], g [T, out]) -> [E, in, out], [E, out]    the backward of `linear`
segment_sum(g [T, d]) -> [E, d]                                 the backward of `vector`
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import torch
import triton
from torch import Tensor

from inlay.kernels import launch, routed
from inlay.kernels.operators import fake, operator

_PROGRAMS = 256
"""A long sum is cut until about this many programs work on it: two per multiprocessor."""
_LEAST_PARTS = 4
"""Into at least this many parts even with many places: one of them may be much longer than the others."""
_PART = 128
"""A part of fewer tokens than this does not pay for its own program."""


@operator("weight_grad", has_gradient=False)
def weight_grad(
    x: Tensor,
    grad: Tensor,
    entry: Tensor,
    bounds: Tensor,
    capacity: int,
    wants_bias: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x' grad [capacity, in, out] and, if wanted, sums of grad [capacity, out] over each place's tokens."""
    x, grad = launch.rows(x), launch.rows(grad)
    places, tokens, d_in, d_out = entry.shape[0], x.shape[0], x.shape[1], grad.shape[1]
    half = x.element_size() == 2
    large = half and min(d_in, d_out) >= 128 and places * d_in * d_out >= 128 * 128 * 128
    block_in, block_out = (launch.fit(width, 128 if large else 64 if half else 32) for width in (d_in, d_out))
    blocks = triton.cdiv(d_in, block_in) * triton.cdiv(d_out, block_out)
    chunk = _chunk(tokens, places, blocks)
    dweight = launch.empty((capacity, d_in, d_out), dtype, x.device)
    dbias = launch.empty((capacity if wants_bias else 0, d_out), dtype, x.device)
    parts = _parts(d_in * d_out + wants_bias * d_out, tokens, chunk, x.device)
    with launch.device_of(x):
        routed.weight_kernel[(blocks, places + capacity, max(1, triton.cdiv(tokens, chunk)))](
            x,
            grad,
            dweight,
            dbias if wants_bias else None,
            parts,
            entry,
            bounds,
            places,
            chunk,
            d_in,
            d_out,
            x.stride(0),
            grad.stride(0),
            BLOCK=64 if half else 32,
            BLOCK_IN=block_in,
            BLOCK_OUT=block_out,
            PRECISION=launch.precision(x),
            num_warps=8 if large else 4,
            num_stages=3 if half else 2,
        )
        _total(parts, dweight, dbias if wants_bias else None, entry, bounds, chunk)
    return dweight, dbias


@fake(weight_grad)
def _(
    x: Tensor,
    grad: Tensor,
    entry: Tensor,
    bounds: Tensor,
    capacity: int,
    wants_bias: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    d_in, d_out = x.shape[1], grad.shape[1]
    dbias = x.new_empty((capacity if wants_bias else 0, d_out), dtype=dtype)
    return x.new_empty((capacity, d_in, d_out), dtype=dtype), dbias


@operator("segment_sum", has_gradient=False)
def segment_sum(grad: Tensor, entry: Tensor, bounds: Tensor, capacity: int) -> Tensor:
    """Column sums [capacity, d], fp32, over each place's tokens, at its entry; zeros for the others."""
    grad = launch.rows(grad)
    tokens, width = grad.shape
    places, block_out = entry.shape[0], min(128, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, block_out)
    chunk = _chunk(tokens, places, blocks)
    out = launch.empty((capacity, width), torch.float32, grad.device)
    parts = _parts(width, tokens, chunk, grad.device)
    with launch.device_of(grad):
        routed.sum_kernel[(blocks, places + capacity, max(1, triton.cdiv(tokens, chunk)))](
            grad,
            out,
            parts,
            entry,
            bounds,
            places,
            chunk,
            width,
            grad.stride(0),
            BLOCK=min(64 * 128 // block_out, 128),
            BLOCK_OUT=block_out,
            num_warps=4,
        )
        _total(parts, out, None, entry, bounds, chunk)
    return out


@fake(segment_sum)
def _(grad: Tensor, entry: Tensor, bounds: Tensor, capacity: int) -> Tensor:
    return grad.new_empty((capacity, grad.shape[1]), dtype=torch.float32)


def _chunk(tokens: int, places: int, blocks: int) -> int:
    """How many tokens of a place one program sums.

    The host does not know how long places are, nor which are padding. One place may have all tokens, so its parts
    alone should fill the device; with many places, most of the parts are empty and should not be many.
    """
    parts = min(_PROGRAMS // blocks, max(_LEAST_PARTS, _PROGRAMS // max(1, places)))
    return max(_PART, 64 * int(triton.cdiv(tokens, 64 * max(1, parts))))


def _parts(width: int, tokens: int, chunk: int, device: torch.device) -> Tensor:
    """Room for the parts of places that have more than one."""
    return launch.empty((2 * (tokens // chunk + 1) if tokens > chunk else 0, width), torch.float32, device)


def _total(parts: Tensor, out: Tensor, extra: Tensor | None, entry: Tensor, bounds: Tensor, chunk: int) -> None:
    """Add up the parts of each place, if there can be any."""
    if parts.shape[0]:
        size, rest = out[0].numel(), 0 if extra is None else extra.shape[1]
        grid = (triton.cdiv(size + rest, 1024), entry.shape[0])
        routed.total_kernel[grid](parts, out, extra, entry, bounds, chunk, size, rest, BLOCK=1024, num_warps=4)
