"""The two routed primitives; `inlay.kernels.routed` explains the tables.

    linear(x [T, in], weight [E, in, out], bias [E, out]) -> [T, out]    every token times its own entry's matrix
    vector(p [E, d]) -> [T, d]                                           every token's own entry's vector

Nothing in the routed modules reads a number back from the device, so all of it can be captured in a CUDA graph, and
the compiler sees opaque operators with known shapes. The exception is `vector`: plain indexing, which it fuses with
what comes next. Products run in the dtype of x with fp32 sums, gradients come back in the dtype of the parameter.
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from inlay.kernels import launch, routed
from inlay.kernels.operators import fake, gradient, operator
from inlay.kernels.routed_sums import segment_sum, weight_grad


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, entry: Tensor, tiles: Tensor, bounds: Tensor, block: int
) -> Tensor:
    """Every token times its own entry's matrix; zeros for entry 0 and for tokens in no tile."""
    out: Tensor = linear_forward(x, weight, bias, entry, tiles, bounds, block)
    return out


@operator("linear", has_gradient=True)
def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, entry: Tensor, tiles: Tensor, bounds: Tensor, block: int
) -> Tensor:
    """Every token of `x` times its own entry's matrix."""
    x, bias = launch.rows(x), None if bias is None else launch.rows(bias)
    tokens, (_, d_in, d_out) = x.shape[0], weight.shape
    out = launch.empty((tokens, d_out), x.dtype, x.device)
    half = x.element_size() == 2
    block_out = launch.fit(d_out, 128 if half else 64)
    block_in = launch.fit(d_in, (128 if block_out <= 32 else 64) if half else 32)
    with launch.device_of(x):
        routed.linear_kernel[(launch.programs(tokens, tiles, block) * triton.cdiv(d_out, block_out),)](
            x,
            weight,
            bias,
            out,
            *launch.tables(tiles, entry, bounds, tokens),
            d_in,
            d_out,
            x.stride(0),
            *weight.stride(),
            0 if bias is None else bias.stride(0),
            BLOCK=block,
            BLOCK_IN=block_in,
            BLOCK_OUT=block_out,
            PRECISION=launch.precision(x),
            num_warps=8 if block * block_out > 64 * 128 else 4,
            num_stages=3 if half else 2,
        )
    return out


@fake(linear_forward)
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, entry: Tensor, tiles: Tensor, bounds: Tensor, block: int
) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[2]))


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, entry, tiles, bounds, block = inputs
    ctx.save_for_backward(x, weight, entry, tiles, bounds)
    ctx.block = block
    ctx.bias_dtype = None if bias is None else bias.dtype


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, entry, tiles, bounds = ctx.saved_tensors
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    dx = linear(grad, weight.transpose(1, 2), None, entry, tiles, bounds, ctx.block) if wants_x else None
    dweight, dbias = None, None
    if wants_weight:
        dweight, dbias = weight_grad(x, grad, entry, bounds, weight.shape[0], wants_bias, weight.dtype)
    elif wants_bias:
        dbias = segment_sum(grad, entry, bounds, weight.shape[0])
    return dx, dweight, dbias.to(ctx.bias_dtype) if wants_bias and dbias is not None else None, None, None, None, None


gradient(linear_forward, _linear_backward, keep=_keep_linear)


def vector(p: Tensor, entry: Tensor, bounds: Tensor, slot_of_token: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of p [E, d] by each token's place [T], in `dtype`; zeros where there is none (< 0) or its entry is 0."""
    return _Vector.apply(p, entry, bounds, slot_of_token, dtype)  # type: ignore[no-untyped-call, no-any-return]


class _Vector(torch.autograd.Function):
    """Indexing, with sums over runs instead of a scattered backward."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, entry: Tensor, bounds: Tensor, slot_of_token: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(p, entry, bounds)
        place = slot_of_token.long()
        entry_of_token = torch.where(place < 0, 0, entry[place.clamp_min(0)].long())
        return torch.where((entry_of_token > 0).unsqueeze(1), p[entry_of_token].to(dtype), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        p, entry, bounds = ctx.saved_tensors
        return segment_sum(grad, entry, bounds, p.shape[0]).to(p.dtype), None, None, None, None
