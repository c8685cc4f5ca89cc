"""The two routed primitives and their back ends.

    linear(x [n, in], W [E, in, out], b [E, out]) -> [n, out]    every token times its own entry's matrix
    vector(p [E, d]) -> [n, d]                                   every token's own entry's vector

Tokens come in segments `(start, end, entry)`. Entry 0 stands for "not in this group": it is zero and gets no
gradient, whatever (finite) numbers are stored there. Back ends, all equal to `reference` up to rounding:

    reference  gathers each token's own matrix; short and slow, the oracle of the tests
    segments   one product per segment; the CPU's path
    chopped    few batched products over many short segments; the CPU's without gradients
    gathered   every token's own matrix, for segments of one or two tokens (pooled rows before a head); likewise
    kernels    CUDA with Triton (inlay.kernels)
    grouped    one grouped product over all segments; CUDA in half precision without Triton, where fp32 takes segments

Parameters may be kept in a wider dtype than the activations: products run in the dtype of x, gradients come
back in the dtype of the parameter.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_GATHERED = 1 << 22
"""The most numbers that copies of matrices may take."""
Segment = tuple[int, int, int]
"""(start, end, entry); segments are in order, do not overlap, and are not empty."""


def has_kernels(device: torch.device) -> bool:
    """Whether routes on this device can be tensors for kernels of our own."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Sequence[Segment]) -> Tensor:
    """Gather every token's own matrix."""
    entry = entries(segments, x.shape[0], x.device)
    inside = (entry > 0).to(x.dtype).unsqueeze(1)
    out = torch.einsum("ni,nio->no", x, weight[entry].to(x.dtype))
    if bias is not None:
        out = out + bias[entry].to(x.dtype)
    return out * inside


def vector_reference(p: Tensor, segments: Sequence[Segment], tokens: int, dtype: torch.dtype) -> Tensor:
    """Gather every token's own vector."""
    entry = entries(segments, tokens, p.device)
    return p[entry].to(dtype) * (entry > 0).to(dtype).unsqueeze(1)


def entries(segments: Sequence[Segment], tokens: int, device: torch.device) -> Tensor:
    """[tokens] the entry of every token."""
    out = torch.zeros(tokens, dtype=torch.long)
    for start, end, entry in segments:
        out[start:end] = entry
    return out.to(device)


class SegmentLinear(torch.autograd.Function):
    """One product per segment, forward and backward; tokens outside every segment get zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, segments: Sequence[Segment]) -> Tensor:
        """x [n, in] -> [n, out]."""
        out = x.new_zeros(x.shape[0], weight.shape[2])
        for start, end, entry in segments:
            if entry == 0:
                continue
            matrix = weight[entry].to(x.dtype)
            if bias is None:
                torch.mm(x[start:end], matrix, out=out[start:end])
            else:
                torch.addmm(bias[entry].to(x.dtype), x[start:end], matrix, out=out[start:end])
        ctx.save_for_backward(x, weight)
        ctx.segments = segments
        ctx.bias_shape = None if bias is None else (bias.shape, bias.dtype)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Each entry's gradient is the sum over its own segments alone."""
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_x = torch.zeros_like(x) if wants_x else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = grad.new_zeros(ctx.bias_shape[0], dtype=ctx.bias_shape[1]) if wants_bias else None
        for start, end, entry in ctx.segments:
            if entry == 0:
                continue
            part = grad[start:end]
            if grad_x is not None:
                torch.mm(part, weight[entry].to(part.dtype).t(), out=grad_x[start:end])
            if grad_weight is not None:
                grad_weight[entry] += torch.mm(x[start:end].t(), part)
            if grad_bias is not None:
                grad_bias[entry] += part.sum(0, dtype=grad_bias.dtype)
        return grad_x, grad_weight, grad_bias, None


class Chopped:
    """Many short segments in groups of similar length, padded to the longest of each: few batched products, without
    gradients. Rows are moved only by `index_select`, which copies them whole."""

    def __init__(self, segments: Sequence[Segment], tokens: int, device: torch.device):
        groups: dict[int, list[Segment]] = {}
        for segment in segments:
            if segment[2]:
                groups.setdefault((segment[1] - segment[0] - 1).bit_length(), []).append(segment)
        self.parts: list[tuple[int, int]] = []
        """(number of segments, their length with padding) of each group."""
        self.back: Tensor
        """[tokens] each token's place among the padded ones; one past the last for tokens outside every segment."""
        at, entries, places = [], [], 0
        back, entry_of = np.full(tokens, -1), np.zeros(tokens, dtype=np.int64)
        for group in groups.values():
            starts, ends, entry = np.array(group).T
            steps = np.arange((ends - starts).max())
            token = starts[:, None] + steps
            inside = token < ends[:, None]
            gather = np.where(inside, token, starts[:, None])
            back[gather[inside]] = places + np.flatnonzero(inside)
            entry_of[gather[inside]] = np.repeat(entry, ends - starts)
            self.parts.append((len(group), len(steps)))
            at.append(gather.reshape(-1))
            entries.append(entry)
            places += inside.size
        self.places = places
        self.is_whole = bool((back >= 0).all())
        self.at, self.entry, self.back, self.entry_of = (
            torch.from_numpy(a).to(device)
            for a in (np.concatenate(at), np.concatenate(entries), np.where(back >= 0, back, places), entry_of)
        )

    @staticmethod
    def pays(segments: Sequence[Segment]) -> bool:
        """Whether there are enough segments, and short enough ones."""
        sizes = [end - start for start, end, entry in segments if entry]
        return len(sizes) >= 8 and sum(sizes) <= 128 * len(sizes)


def linear_chopped(x: Tensor, weight: Tensor, bias: Tensor | None, chopped: Chopped) -> Tensor:
    """A batched product for every group; tokens outside every segment get zeros."""
    padded = x.index_select(0, chopped.at)
    matrices = weight.index_select(0, chopped.entry).to(x.dtype)
    biases = None if bias is None else bias.index_select(0, chopped.entry).unsqueeze(1).to(x.dtype)
    out = x.new_empty(chopped.places + 1, weight.shape[2])
    out[-1] = 0
    place = first = 0
    for count, length in chopped.parts:
        rows, group = slice(place, place + count * length), slice(first, first + count)
        x_rows, out_rows = (t[rows].view(count, length, -1) for t in (padded, out))
        if biases is None:
            torch.bmm(x_rows, matrices[group], out=out_rows)
        else:
            torch.baddbmm(biases[group], x_rows, matrices[group], out=out_rows)
        place, first = rows.stop, group.stop
    return out.index_select(0, chopped.back)


def gather_pays(segments: Sequence[Segment], tokens: int, weight: Tensor) -> bool:
    """Whether to give every token its own matrix: about one token a segment, no holes, and small matrices."""
    whole = sum([end - start for start, end, entry in segments if entry]) == tokens
    return whole and 8 <= tokens <= 2 * len(segments) and tokens * weight[0].numel() <= _GATHERED


def linear_gathered(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Sequence[Segment]) -> Tensor:
    """One product of every token with its own matrix; every token is in a segment."""
    entry_of_token = np.array([entry for start, end, entry in segments for _ in range(end - start)])
    entry = torch.from_numpy(entry_of_token).to(x.device)
    matrices, rows = weight.index_select(0, entry).to(x.dtype), x.unsqueeze(1)
    if bias is None:
        return torch.bmm(rows, matrices).squeeze(1)
    return torch.baddbmm(bias.index_select(0, entry).to(x.dtype).unsqueeze(1), rows, matrices).squeeze(1)


def vector_chopped(p: Tensor, chopped: Chopped, dtype: torch.dtype) -> Tensor:
    """Every token's own vector; zeros outside every segment."""
    vectors = p.index_select(0, chopped.entry_of).to(dtype)
    return vectors if chopped.is_whole else vectors.masked_fill((chopped.entry_of == 0).unsqueeze(1), 0)


class SegmentVector(torch.autograd.Function):
    """Repeat each entry's vector over its segment; the gradient is the sum over the segment."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, segments: Sequence[Segment], tokens: int, dtype: torch.dtype) -> Tensor:
        """p [E, d] -> [n, d]."""
        out = p.new_zeros(tokens, p.shape[1], dtype=dtype)
        for start, end, entry in segments:
            if entry:
                out[start:end] = p[entry].to(dtype)
        ctx.segments = segments
        ctx.like = (p.shape, p.dtype)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Sum in the dtype of the parameter."""
        shape, dtype = ctx.like
        out = grad.new_zeros(shape, dtype=dtype)
        for start, end, entry in ctx.segments:
            if entry:
                out[entry] += grad[start:end].sum(0, dtype=dtype)
        return out, None, None, None


class GroupedSegments:
    """Segments as tensors on a device, holes filled with entry 0, for grouped products; made once per route."""

    def __init__(self, segments: Sequence[Segment], tokens: int, device: torch.device):
        groups = _tile(segments, tokens)
        table = torch.tensor(groups).to(device)
        self.tokens = tokens
        self.entry = table[:, 2].contiguous()
        self.ends = table[:, 1].to(torch.int32)
        self.counts = table[:, 1] - table[:, 0]
        self.inside = self.entry > 0

    def choose(self, stack: Tensor) -> Tensor:
        """Each tile's own entry; zeros for entry 0, and no gradient. Not a product: inf would become NaN."""
        chosen = stack.index_select(0, self.entry)
        inside = self.inside.view(-1, *[1] * (chosen.dim() - 1))
        return torch.where(inside, chosen, torch.zeros((), dtype=chosen.dtype, device=chosen.device))


def linear_grouped(x: Tensor, weight: Tensor, bias: Tensor | None, tiles: GroupedSegments) -> Tensor:
    """One grouped product; tokens outside every segment form groups of their own with a zero matrix."""
    chosen = tiles.choose(weight).to(x.dtype)
    missing = -weight.shape[2] % 8  # the product wants rows of 16 bytes
    if missing:
        chosen = F.pad(chosen, (0, missing))
    out = _ContiguousGrad.apply(torch._grouped_mm(x.contiguous(), chosen, offs=tiles.ends))  # type: ignore[no-untyped-call]
    if missing:
        out = out[:, : weight.shape[2]]
    if bias is not None:
        out = out + vector_grouped(bias, tiles, x.dtype)
    return out  # type: ignore[no-any-return]


def vector_grouped(p: Tensor, tiles: GroupedSegments, dtype: torch.dtype) -> Tensor:
    """Repeat each entry's vector over its segment; the backward is a sum over each segment, nothing else."""
    return _Spread.apply(tiles.choose(p), tiles.counts, tiles.tokens, dtype)  # type: ignore[no-untyped-call, no-any-return]


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chosen: Tensor, counts: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(counts)
        ctx.dtype = chosen.dtype
        return torch.repeat_interleave(chosen.to(dtype), counts, dim=0, output_size=tokens)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        dtype = ctx.dtype
        (counts,) = ctx.saved_tensors
        return torch.segment_reduce(grad.to(dtype), "sum", lengths=counts, axis=0, unsafe=True), None, None, None


class _ContiguousGrad(torch.autograd.Function):
    """The grouped product's backward does not take expanded gradients (those of a plain sum)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


def _tile(segments: Sequence[Segment], tokens: int) -> list[Segment]:
    """Fill the holes between segments with entry 0, so that every token is in one."""
    out: list[Segment] = []
    at = 0
    for start, end, entry in segments:
        if start > at:
            out.append((at, start, 0))
        out.append((start, end, entry))
        at = end
    if at < tokens:
        out.append((at, tokens, 0))
    return out
