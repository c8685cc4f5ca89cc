"""Projections in fp8 (e4m3): for GPUs from Ada and Hopper on, which multiply it faster than bf16.

Both factors are scaled: a weight once, with one scale for every output; an activation with one for every token, found
as it runs, so that an answer does not depend on the rows beside it. The backward pass is the same product again: the
gradient token by token, times a second copy of the weight that has one scale for every input. Both copies together are
as large as the bf16 weight they replace. Sums and results are not fp8. A product differs from that in fp32 by about 4 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.base.products import Product
from inlay.errors import BaseError

if TYPE_CHECKING:
    from inlay.base.load import Base

_TINY = 1e-12
_LARGEST = 448.0
_OLDEST = (8, 9)
_STEP = 16
"""What the sizes of an fp8 product are multiples of."""


class Fp8(Product):
    """A product of an fp8 weight and activations that are made fp8 token by token; it has a gradient."""

    kind = "fp8"
    trains = True

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(weight, bias)
        self._forward = _scaled(weight)
        self._backward = _scaled(weight.T)

    @classmethod
    def refuse(cls, base: Base) -> None:
        """CUDA in bf16, on a GPU that has it."""
        here = f"{base.device.type} in {str(base.dtype).removeprefix('torch.')}"
        if base.device.type != "cuda" or base.dtype != torch.bfloat16:
            raise BaseError(f"fp8 is for CUDA in bfloat16, and {base.name} is on {here}; load it without fp8")
        if torch.cuda.get_device_capability(base.device) < _OLDEST:
            name = torch.cuda.get_device_name(base.device)
            raise BaseError(f"fp8 needs a GPU of compute capability 8.9 or newer, which {name} is not")

    @classmethod
    def fits(cls, weight: Tensor) -> bool:
        """Whether a weight's sizes are such that fp8 can multiply it."""
        return all(size % _STEP == 0 for size in weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in the dtype of x."""
        y: Tensor = _Product.apply(x, self._forward, self._backward, self._bias)  # type: ignore[no-untyped-call]
        return y

    def compute(self, x: Tensor) -> Tensor:
        """The product, without a gradient."""
        return _times(x, self._forward, self._bias)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, there: tuple[Tensor, Tensor], back: tuple[Tensor, Tensor], bias: Tensor | None
    ) -> Tensor:
        ctx.back = back
        return _times(x, there, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _times(grad, ctx.back, None), None, None, None


def _times(x: Tensor, weight: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
    numbers, scale = weight
    flat, own = _scaled(x.reshape(-1, x.shape[-1]))
    y = product(flat, numbers.T, own, scale.T, bias, x.dtype)
    return y.view(*x.shape[:-1], numbers.shape[0])


def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a [n, in] times b [in, out], each with its scales [n, 1] and [1, out]."""
    return torch._scaled_mm(a, b, a_scale, b_scale, bias, out_dtype=dtype, use_fast_accum=True)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as fp8, and each one's scale [n, 1]."""
    top = x.abs().amax(1, keepdim=True).float().clamp(min=_TINY)
    return (x.float() * (_LARGEST / top)).to(torch.float8_e4m3fn).contiguous(), top / _LARGEST
