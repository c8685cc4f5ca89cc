"""bottleneck(x [T, in], down, down_bias, up, up_bias) -> [T, out]: act(x down + b) up + b in one kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inlay.kernels import launch, routed
from inlay.kernels.activations import ACTIVATIONS
from inlay.kernels.operators import fake, gradient, operator
from inlay.kernels.routed_linear import linear
from inlay.kernels.routed_sums import weight_grad

FUSED = ("gelu", "relu", "tanh", "swish", "leaky_relu", "identity")
"""Activations that `bottleneck` has in its kernel."""
WIDEST = 256
"""The widest bottleneck that stays on the chip, with tiles of 64 tokens; with 128 tokens it is half of that."""


def bottleneck(
    x: Tensor,
    down: Tensor,
    down_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    scale: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> Tensor:
    """act(scale (x down + down_bias)) up + up_bias; as two `linear` where a kernel cannot hold the middle.

    Args:
        scale: [E, 1], a constant; None is 1.
    """
    if activation in FUSED and down.shape[2] <= WIDEST * 64 // max(64, block):
        out: Tensor
        out, _ = bottleneck_forward(x, down, down_bias, up, up_bias, scale, activation, entry, tiles, bounds, block)
        return out
    if scale is not None:
        down, down_bias = down * scale[:, :, None], None if down_bias is None else down_bias * scale
    h = ACTIVATIONS[activation](linear(x, down, down_bias, entry, tiles, bounds, block))
    return linear(h, up, up_bias, entry, tiles, bounds, block)


@operator("bottleneck", has_gradient=True)
def bottleneck_forward(
    x: Tensor,
    down: Tensor,
    down_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    scale: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> tuple[Tensor, Tensor]:
    """(the output [T, out], the input of the activation [T, m])."""
    biases = [None if bias is None else launch.rows(bias) for bias in (down_bias, up_bias)]
    return _through(x, down, biases[0], up, biases[1], scale, None, activation, entry, tiles, bounds, block)


@fake(bottleneck_forward)
def _(
    x: Tensor,
    down: Tensor,
    down_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    scale: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], up.shape[2])), x.new_empty((x.shape[0], down.shape[2]))


@operator("bottleneck_backward", has_gradient=False)
def bottleneck_backward(
    grad: Tensor,
    h: Tensor,
    down: Tensor,
    up: Tensor,
    scale: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> tuple[Tensor, Tensor]:
    """The gradients of x [T, in] and of what was scaled [T, m]."""
    first, second = up.transpose(1, 2), down.transpose(1, 2)
    return _through(grad, first, None, second, None, scale, h, activation, entry, tiles, bounds, block)


@fake(bottleneck_backward)
def _(
    grad: Tensor,
    h: Tensor,
    down: Tensor,
    up: Tensor,
    scale: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> tuple[Tensor, Tensor]:
    return grad.new_empty((grad.shape[0], down.shape[1])), h.new_empty(h.shape)


def _through(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    scale: Tensor | None,
    h: Tensor | None,
    activation: str,
    entry: Tensor,
    tiles: Tensor,
    bounds: Tensor,
    block: int,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel that both directions share; only the backward passes `h`."""
    x = launch.rows(x)
    tokens, d_in, m, d_out = x.shape[0], x.shape[1], first.shape[2], second.shape[2]
    out, mid = (launch.empty((tokens, width), x.dtype, x.device) for width in (d_out, m))
    half = x.element_size() == 2
    with launch.device_of(x):
        routed.bottleneck_kernel[(launch.programs(tokens, tiles, block),)](
            x,
            first,
            first_bias,
            second,
            second_bias,
            scale,
            h,
            mid,
            out,
            *launch.tables(tiles, entry, bounds, tokens),
            d_in,
            d_out,
            m,
            x.stride(0),
            *first.stride(),
            *second.stride(),
            0 if first_bias is None else first_bias.stride(0),
            0 if second_bias is None else second_bias.stride(0),
            0 if scale is None else scale.stride(0),
            BACKWARD=h is not None,
            ACTIVATION=activation,
            BLOCK=block,
            CHUNK=launch.fit(max(d_in, d_out), (_wide(block, m) if m <= 128 else 32) if half else 16),
            WIDTH=launch.fit(m, WIDEST),
            PRECISION=launch.precision(x),
            num_warps=8 if block * max(m, 64) >= 64 * 128 else 4,
            num_stages=3 if half else 2,
        )
    return out, mid


def _wide(block: int, m: int) -> int:
    """How many columns are done at a time: more for small tiles."""
    return 128 if block <= 16 and m <= 64 else 64


def _keep_bottleneck(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, down, down_bias, up, up_bias, scale, activation, entry, tiles, bounds, block = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, output[1], down, up, scale, entry, tiles, bounds)
    ctx.how = (activation, block, *(None if bias is None else bias.dtype for bias in (down_bias, up_bias)))


def _bottleneck_backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, h, down, up, scale, entry, tiles, bounds = ctx.saved_tensors
    activation, block, down_dtype, up_dtype = ctx.how
    capacity = down.shape[0]
    dx, dh = bottleneck_backward(grad, h, down, up, scale, activation, entry, tiles, bounds, block)
    ddown, ddown_bias, dup, dup_bias = None, None, None, None
    if any(ctx.needs_input_grad[1:3]):
        ddown, ddown_bias = weight_grad(x, dh, entry, bounds, capacity, down_dtype is not None, down.dtype)
    if any(ctx.needs_input_grad[3:5]):
        act = ACTIVATIONS[activation](h)  # one pass over [T, m]; in the kernel, every block of it would repeat it
        dup, dup_bias = weight_grad(act, grad, entry, bounds, capacity, up_dtype is not None, up.dtype)
    ddown_bias = None if down_dtype is None or ddown_bias is None else ddown_bias.to(down_dtype)
    dup_bias = None if up_dtype is None or dup_bias is None else dup_bias.to(up_dtype)
    return dx, ddown, ddown_bias, dup, dup_bias, *(None,) * 6


gradient(bottleneck_forward, _bottleneck_backward, keep=_keep_bottleneck)
