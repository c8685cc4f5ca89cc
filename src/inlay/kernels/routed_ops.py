"""The routed primitives as registered operators over Triton kernels; the tables are those of `inlay.kernels.routed`.

    linear(x [T, in], weight [E, in, out], bias [E, out]) -> [T, out]    every token times its own entry's matrix
    bottleneck(x [T, in], down, down_bias, up, up_bias) -> [T, out]      act(x down + b) up + b in one kernel
    vector(p [E, d]) -> [T, d]                                           every token's own entry's vector
    segment_sum(g [T, d]) -> [E, d]                                      the backward of `vector`

Nothing here reads a number back from the device, so all of it can be captured in a CUDA graph, and the compiler
sees opaque operators with known shapes. The exception is `vector`: plain indexing, which it fuses with what comes
next. Products run in the dtype of x with fp32 sums, gradients come back in the dtype of the parameter. Blocks are
chosen by rule and never tuned by trial. Import this module only where there is Triton.
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import triton
from torch import Tensor

from inlay.kernels import routed
from inlay.kernels.activations import ACTIVATIONS

FUSED = ("gelu", "relu", "tanh", "swish", "leaky_relu", "identity")
"""Activations that `bottleneck` has in its kernel."""
WIDEST = 256
"""The widest bottleneck that stays on the chip, with tiles of 64 tokens; with 128 it is half of that."""
_PROGRAMS = 256
"""A long sum is cut until about so many programs work on it: two for each multiprocessor."""
_LEAST_PARTS = 4
"""Into so many even with many places: one of them may be much longer than the others."""
_PART = 128
"""Tokens under which a part is not worth its own program."""


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, entry: Tensor, tiles: Tensor, bounds: Tensor, block: int
) -> Tensor:
    """Every token times its own entry's matrix; zeros for entry 0 and for tokens in no tile."""
    out: Tensor = linear_forward(x, weight, bias, entry, tiles, bounds, block)
    return out


@torch.library.custom_op("inlay::linear", mutates_args=())
def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, entry: Tensor, tiles: Tensor, bounds: Tensor, block: int
) -> Tensor:
    """Every token of `x` times its own entry's matrix."""
    x, bias = _rows(x), None if bias is None else _rows(bias)
    tokens, (_, d_in, d_out) = x.shape[0], weight.shape
    out = _empty((tokens, d_out), x.dtype, x.device)
    half = x.element_size() == 2
    block_out = _fit(d_out, 128 if half else 64)
    block_in = _fit(d_in, (128 if block_out <= 32 else 64) if half else 32)
    with _device(x):
        routed.linear_kernel[(_programs(tokens, tiles, block) * triton.cdiv(d_out, block_out),)](
            x,
            weight,
            bias,
            out,
            *_tables(tiles, entry, bounds, tokens),
            d_in,
            d_out,
            x.stride(0),
            *weight.stride(),
            0 if bias is None else bias.stride(0),
            BLOCK=block,
            BLOCK_IN=block_in,
            BLOCK_OUT=block_out,
            PRECISION=_precision(x),
            num_warps=8 if block * block_out > 64 * 128 else 4,
            num_stages=3 if half else 2,
        )
    return out


@linear_forward.register_fake
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


linear_forward.register_autograd(_linear_backward, setup_context=_keep_linear)


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


@torch.library.custom_op("inlay::bottleneck", mutates_args=())
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
    """(the output [T, out], what went into the activation [T, m])."""
    biases = [None if bias is None else _rows(bias) for bias in (down_bias, up_bias)]
    return _through(x, down, biases[0], up, biases[1], scale, None, activation, entry, tiles, bounds, block)


@bottleneck_forward.register_fake
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


@torch.library.custom_op("inlay::bottleneck_backward", mutates_args=())
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


@bottleneck_backward.register_fake
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
    """Launch the kernel that both directions share; `h` is given in the backward."""
    x = _rows(x)
    tokens, d_in, m, d_out = x.shape[0], x.shape[1], first.shape[2], second.shape[2]
    out, mid = (_empty((tokens, width), x.dtype, x.device) for width in (d_out, m))
    half = x.element_size() == 2
    with _device(x):
        routed.bottleneck_kernel[(_programs(tokens, tiles, block),)](
            x,
            first,
            first_bias,
            second,
            second_bias,
            scale,
            h,
            mid,
            out,
            *_tables(tiles, entry, bounds, tokens),
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
            CHUNK=_fit(max(d_in, d_out), (_wide(block, m) if m <= 128 else 32) if half else 16),
            WIDTH=_fit(m, WIDEST),
            PRECISION=_precision(x),
            num_warps=8 if block * max(m, 64) >= 64 * 128 else 4,
            num_stages=3 if half else 2,
        )
    return out, mid


def _wide(block: int, m: int) -> int:
    """Columns at a time: more where a tile is small."""
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


bottleneck_forward.register_autograd(_bottleneck_backward, setup_context=_keep_bottleneck)


@torch.library.custom_op("inlay::weight_grad", mutates_args=())
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
    x, grad = _rows(x), _rows(grad)
    places, tokens, d_in, d_out = entry.shape[0], x.shape[0], x.shape[1], grad.shape[1]
    half = x.element_size() == 2
    large = half and min(d_in, d_out) >= 128 and places * d_in * d_out >= 128 * 128 * 128
    block_in, block_out = (_fit(width, 128 if large else 64 if half else 32) for width in (d_in, d_out))
    blocks = triton.cdiv(d_in, block_in) * triton.cdiv(d_out, block_out)
    chunk = _chunk(tokens, places, blocks)
    dweight = _empty((capacity, d_in, d_out), dtype, x.device)
    dbias = _empty((capacity if wants_bias else 0, d_out), dtype, x.device)
    parts = _parts(d_in * d_out + wants_bias * d_out, tokens, chunk, x.device)
    with _device(x):
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
            PRECISION=_precision(x),
            num_warps=8 if large else 4,
            num_stages=3 if half else 2,
        )
        _total(parts, dweight, dbias if wants_bias else None, entry, bounds, chunk)
    return dweight, dbias


@weight_grad.register_fake
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


@torch.library.custom_op("inlay::segment_sum", mutates_args=())
def segment_sum(grad: Tensor, entry: Tensor, bounds: Tensor, capacity: int) -> Tensor:
    """Column sums [capacity, d], fp32, over each place's tokens, at its entry; zeros for the others."""
    grad = _rows(grad)
    tokens, width = grad.shape
    places, block_out = entry.shape[0], min(128, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, block_out)
    chunk = _chunk(tokens, places, blocks)
    out = _empty((capacity, width), torch.float32, grad.device)
    parts = _parts(width, tokens, chunk, grad.device)
    with _device(grad):
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


@segment_sum.register_fake
def _(grad: Tensor, entry: Tensor, bounds: Tensor, capacity: int) -> Tensor:
    return grad.new_empty((capacity, grad.shape[1]), dtype=torch.float32)


def vector(p: Tensor, entry: Tensor, bounds: Tensor, slot_of_token: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of p [E, d] by each token's place [T], in `dtype`; zeros where there is none (< 0) or its entry is 0."""
    return _Vector.apply(p, entry, bounds, slot_of_token, dtype)  # type: ignore[no-untyped-call, no-any-return]


class _Vector(torch.autograd.Function):
    """Indexing, with sums over runs in place of a scattered backward."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, entry: Tensor, bounds: Tensor, slot_of_token: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(p, entry, bounds)
        place = slot_of_token.long()
        own = torch.where(place < 0, 0, entry[place.clamp_min(0)].long())
        return torch.where((own > 0).unsqueeze(1), p[own].to(dtype), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        p, entry, bounds = ctx.saved_tensors
        return segment_sum(grad, entry, bounds, p.shape[0]).to(p.dtype), None, None, None, None


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that a kernel writes in full; tests fill it with NaN first."""
    return torch.empty(shape, dtype=dtype, device=device)


def _rows(x: Tensor) -> Tensor:
    """Rows at any distance, numbers in a row side by side; gradients of a plain sum are not."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _device(x: Tensor) -> AbstractContextManager[None]:
    """Kernels start on the current device, whatever device their tensors are on."""
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]


def _fit(width: int, most: int) -> int:
    """The block for a width; a product wants 16 at least."""
    return int(min(most, max(16, triton.next_power_of_2(width))))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _programs(tokens: int, tiles: Tensor, block: int) -> int:
    """One for each tile, and those that write the zeros of tokens in no tile."""
    return int(tiles.shape[0] + triton.cdiv(tokens, block))


def _tables(tiles: Tensor, entry: Tensor, bounds: Tensor, tokens: int) -> tuple[Tensor | int, ...]:
    return tiles, entry, bounds, tiles.shape[0], entry.shape[0], tokens


def _chunk(tokens: int, places: int, blocks: int) -> int:
    """How many tokens of a place one program sums.

    The host does not know how long places are, nor which are padding. One place may have all tokens, so its parts
    alone should fill the device; with many places, most of the parts are empty and should not be many.
    """
    parts = min(_PROGRAMS // blocks, max(_LEAST_PARTS, _PROGRAMS // max(1, places)))
    return max(_PART, 64 * int(triton.cdiv(tokens, 64 * max(1, parts))))


def _parts(width: int, tokens: int, chunk: int, device: torch.device) -> Tensor:
    """Room for the parts of places that have more than one."""
    return _empty((2 * (tokens // chunk + 1) if tokens > chunk else 0, width), torch.float32, device)


def _total(parts: Tensor, out: Tensor, more: Tensor | None, entry: Tensor, bounds: Tensor, chunk: int) -> None:
    """Add up the parts of each place, if there can be any."""
    if parts.shape[0]:
        size, rest = out[0].numel(), 0 if more is None else more.shape[1]
        grid = (triton.cdiv(size + rest, 1024), entry.shape[0])
        routed.total_kernel[grid](parts, out, more, entry, bounds, chunk, size, rest, BLOCK=1024, num_warps=4)
