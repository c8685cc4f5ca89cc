"""Rows as fp8, by one kernel that reads them once; equal to `inlay.base.fp8`. Importing this module needs triton."""

# ruff: noqa: N803 (compile-time arguments are capitals)
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.operators import fake, operator
from inlay.kernels.shared import FP8_LARGEST, FP8_TINY, side_by_side

_LARGEST = tl.constexpr(FP8_LARGEST)
_TINY = tl.constexpr(FP8_TINY)


@triton.jit
def _scale(x_ptr, out_ptr, scale_ptr, x_row, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + row * x_row + at, mask=at < width, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(x)), _TINY)
    tl.store(out_ptr + row * width + at, (x * tl.div_rn(_LARGEST, top)).to(tl.float8e4nv), mask=at < width)
    tl.store(scale_ptr + row, tl.div_rn(top, _LARGEST))


@operator("scaled_rows", has_gradient=False)
def scaled_rows(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The parts [n, width_i] side by side as fp8 [n, width], and each row's scale [n, 1]."""
    x = side_by_side(parts)
    rows, width = x.shape
    out, scale = x.new_empty((rows, width), dtype=torch.float8_e4m3fn), x.new_empty((rows, 1), dtype=torch.float32)
    if rows:
        with torch.cuda.device_of(x):
            _scale[(rows,)](x, out, scale, x.stride(0), width, WIDTH=triton.next_power_of_2(width), num_warps=4)
    return out, scale


@fake(scaled_rows)
def _(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, width = parts[0].shape[0], sum(part.shape[1] for part in parts)
    first = parts[0]
    return first.new_empty((rows, width), dtype=torch.float8_e4m3fn), first.new_empty((rows, 1), dtype=torch.float32)
