"""Projections in fp8 (e4m3), for GPUs from Ada and Hopper on, which multiply it faster than bf16.

Both factors are scaled: a weight once, with one scale per output; an activation as it runs, with one scale per token,
so that an answer does not depend on the rows beside it. The backward pass is the same kind of product: the gradient,
scaled per token, times a second copy of the weight with one scale per input. Both copies together are as large as the
bf16 weight they replace. Sums and results are not fp8. A product differs from the fp32 one by about 4 %.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.base.products import LinearBackend
from inlay.errors import BaseError
from inlay.kernels.shared import FP8_LARGEST, FP8_TINY

if TYPE_CHECKING:
    from inlay.base.load import Base

_OLDEST = (8, 9)
_STEP = 16
"""The sizes of an fp8 product are multiples of this."""
_WIDE = 1024
_HAS_TRITON = importlib.util.find_spec("triton") is not None


class Fp8(LinearBackend):
    """A product of an fp8 weight and activations that are converted token by token; it has a gradient."""

    kind = "fp8"
    trains = True

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(weight, bias)
        if _HAS_TRITON:
            importlib.import_module("inlay.kernels.fp8")  # registers its operator
        self._forward = _scaled(weight)
        self._backward = _scaled(weight.T)

    @classmethod
    def refuse(cls, base: Base) -> None:
        """Refuse anything but CUDA in bf16 on a GPU with fp8."""
        here = f"{base.device.type} in {str(base.dtype).removeprefix('torch.')}"
        if base.device.type != "cuda" or base.dtype != torch.bfloat16:
            raise BaseError(f"fp8 is for CUDA in bfloat16, and {base.name} is on {here}; load it without fp8")
        if torch.cuda.get_device_capability(base.device) < _OLDEST:
            name = torch.cuda.get_device_name(base.device)
            raise BaseError(f"fp8 needs a GPU of compute capability 8.9 or newer, which {name} is not")

    @classmethod
    def fits(cls, weight: Tensor) -> bool:
        """Whether fp8 can multiply a weight of these sizes."""
        return all(size % _STEP == 0 for size in weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in the dtype of x."""
        return self.parts(x, [self.out])[0]

    def parts(self, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """The result cut into parts of these widths."""
        parts: tuple[Tensor, ...] = _Product.apply(x, self._forward, self._backward, self._bias, sizes)  # type: ignore[no-untyped-call]
        return parts

    def compute(self, x: Tensor) -> Tensor:
        """The product, without a gradient."""
        return _times([x], self._forward, self._bias)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: tuple[Tensor, Tensor],
        backward_weight: tuple[Tensor, Tensor],
        bias: Tensor | None,
        sizes: list[int],
    ) -> tuple[Tensor, ...]:
        ctx.backward_weight = backward_weight
        return torch.split(_times([x], weight, bias), sizes, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _times(list(gradients), ctx.backward_weight, None), None, None, None, None


def _times(parts: list[Tensor], weight: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
    """The parts side by side, times the weight."""
    numbers, scale = weight
    rows, row_scale = _scaled(*(part.reshape(-1, part.shape[-1]) for part in parts))
    y = product(rows, numbers.T, row_scale, scale.T, bias, parts[0].dtype)
    return y.view(*parts[0].shape[:-1], numbers.shape[0])


def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a [n, in] times b [in, out], each with its scales [n, 1] and [1, out]."""
    return torch._scaled_mm(a, b, a_scale, b_scale, bias, out_dtype=dtype, use_fast_accum=True)


def _scaled(*parts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as fp8, and each one's scale [n, 1].

    Narrow rows are left to the compiler, which fuses this with the code before it; it would read wide ones twice.
    """
    if _HAS_TRITON and parts[0].is_cuda and sum(part.shape[1] for part in parts) > _WIDE:
        return torch.ops.inlay.scaled_rows(list(parts))  # type: ignore[no-any-return]
    x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    top = x.abs().amax(1, keepdim=True).float().clamp(min=FP8_TINY)
    return (x.float() * (FP8_LARGEST / top)).to(torch.float8_e4m3fn).contiguous(), top / FP8_LARGEST
