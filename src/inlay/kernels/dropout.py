"""Keyed dropout as one kernel: the bits of `inlay.bank.noise.keep_lanes`, in eager mode on CUDA.

One hash serves two neighbouring columns, so a block is split into its even and odd columns and joined again; both
stay in the same thread's registers. Gradients go through the same kernel: only the keys are kept for the backward pass.
Importing this module needs triton.
"""

# ruff: noqa: N803 (compile-time arguments are capitals)
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.operators import fake, gradient, operator
from inlay.kernels.shared import COLUMN_STRIDE, MULTIPLIERS, TOKEN_STRIDE, keep_scale, lane_cut

_FIRST = tl.constexpr(MULTIPLIERS[0])
_SECOND = tl.constexpr(MULTIPLIERS[1])
_TOKEN_STRIDE = tl.constexpr(TOKEN_STRIDE)
_COLUMN_STRIDE = tl.constexpr(COLUMN_STRIDE)
_TOKENS, _COLUMNS = 16, 128


@triton.jit
def _mix(h):
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * _FIRST
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * _SECOND
    return h ^ ((h >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["tokens", "cut"])
def _dropout(x, out, key, local, place, tokens, width, stride, cut, scale, TOKENS: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    index = tl.load(local + token, mask=inside, other=-1)
    hashed = _mix(_mix(tl.load(key + token, mask=inside, other=0) ^ tl.load(place)) + index * _TOKEN_STRIDE)
    pair = tl.program_id(1) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    h = _mix(hashed[:, None] + pair[None, :] * _COLUMN_STRIDE)

    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < width)[None, :]
    row = token.to(tl.int64)[:, None]
    values = tl.load(x + row * stride + column[None, :], mask=mask, other=0.0)
    trained = (index >= 0)[:, None]
    factor = tl.where(trained, scale, 1.0)
    even, odd = tl.split(tl.reshape(values, (TOKENS, COLUMNS // 2, 2)))
    even = tl.where(trained & (((h << 16) >> 16) < cut), 0.0, even.to(tl.float32) * factor)
    odd = tl.where(trained & ((h >> 16) < cut), 0.0, odd.to(tl.float32) * factor)
    dropped = tl.reshape(tl.join(even, odd), (TOKENS, COLUMNS))
    tl.store(out + row * width + column[None, :], dropped.to(out.dtype.element_ty), mask=mask)


@operator("dropout", has_gradient=True)
def _op(x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> Tensor:
    tokens, width = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    if x.stride(1) != 1:  # a gradient may be an expanded number
        x = x.contiguous()
    grid = (-(-tokens // _TOKENS), -(-width // _COLUMNS))
    with torch.cuda.device_of(x):
        _dropout[grid](
            x,
            out,
            key.contiguous(),
            local.contiguous(),
            place,
            tokens,
            width,
            x.stride(0),
            lane_cut(p),
            keep_scale(p),
            TOKENS=_TOKENS,
            COLUMNS=_COLUMNS,
        )
    return out


@fake(_op)
def _(x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, key, local, place, ctx.p = inputs
    ctx.save_for_backward(key, local, place)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return _op(grad, *ctx.saved_tensors, ctx.p), None, None, None, None


gradient(_op, _backward, keep=_setup)


def dropout(x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> Tensor:
    """`noise.keyed_dropout` of x [tokens, width] in bf16, fp16 or fp32; all tensors on one device."""
    out: Tensor = _op(x, key, local, place, p)
    return out
