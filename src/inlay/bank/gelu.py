"""GELU in half precision, for compiled layers: as exact as the dtype, at the cost of reading and writing.

The tail of the normal distribution as in Abramowitz and Stegun 7.1.26, which is right to 1.5e-7 and takes one
exponential. The slope needs the same exponential. The usual error function costs as much as the memory's traffic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_P = 0.3275911 * 0.5**0.5
_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_DENSITY = 0.3989422804014327


def half_gelu(x: Tensor) -> Tensor:
    """x times the normal distribution's share below x."""
    return _Gelu.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _below(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = _below(wide)
        slope: Tensor = below + wide * bell * _DENSITY
        return (grad.float() * slope).to(x.dtype)


def _below(x: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the normal distribution below x, and exp(-x^2 / 2)."""
    bell = torch.exp(-0.5 * x * x)
    t = torch.reciprocal(1.0 + _P * x.abs())
    series = t * (_A[0] + t * (_A[1] + t * (_A[2] + t * (_A[3] + t * _A[4]))))
    tail = 0.5 * series * bell
    return torch.where(x < 0, tail, 1.0 - tail), bell
