"""Attention over a packed batch: many rows in one [1, tokens, d] tensor, no padding in the linear layers.

The row boundaries travel through the model as a keyword argument of this function (`inlay_rows=`), never through a
closure: transformers' attention registry is global to the process. On CUDA short rows go to a kernel of our own, others
in half precision to `varlen_attn`; elsewhere rows are unpacked into buckets of similar length for scaled-dot-product
attention. Without `inlay_rows` the call is an ordinary padded one.

A model that computes attention itself (MPNet) does not know the argument: the wiring calls this function instead, with
the bias by distance that the model adds to its scores.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAME = "inlay"
BackEnd = Literal["short", "varlen", "buckets"]
_BUCKET = 16
"""Rows share a bucket if their lengths round up to the same multiple of this."""


@dataclass(frozen=True)
class Bucket:
    """Rows of similar length, padded to the longest of them."""

    gather: Tensor
    """[rows, longest] token index of each position; padding repeats the row's first token."""
    valid: Tensor | None
    """[rows, longest], or None where all rows have the same length."""


class RowBounds:
    """The row boundaries of a packed batch, and what attention needs to know about them."""

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        boundaries: Tensor | None = None,
        longest: int | None = None,
        back_end: BackEnd = "buckets",
    ):
        """
        Args:
            boundaries: [rows + 1] where rows begin and end, if they are on the device already.
            longest: at least as long as the longest row.
        """
        self.back_end = back_end
        self.lengths = [n for n in lengths if n > 0]
        self.device = device
        self.longest = max(self.lengths, default=0) if longest is None else longest
        if boundaries is None:
            boundaries = torch.tensor([0, *self.lengths]).cumsum(0).to(device=device, dtype=torch.int32)
        self.boundaries = boundaries
        self.bias: Tensor | None = None
        """[heads, 2 longest - 1] what is added to scores, by the key's position minus the query's."""
        self.biased: list[Tensor] = []
        """The bias of every bucket, with -inf where attention may not look; large, so all layers use the same."""

    def add_bias(self, dense: Tensor) -> None:
        """Keep a bias [heads, longest, longest] that is added to scores in every row; attention looks both ways."""
        self.bias = torch.cat([dense[:, 1:, 0].flip(1), dense[:, 0]], 1)
        if self.back_end == "buckets":
            self.biased = [self._with_bias(b, _mask(b, False, None, self.device)) for b in self.buckets]

    def _with_bias(self, bucket: Bucket, mask: Tensor | None) -> Tensor:
        """[rows or 1, heads, longest, longest] the bias, and -inf where attention may not look."""
        assert self.bias is not None
        n, middle = bucket.gather.shape[1], self.bias.shape[1] // 2
        near = self.bias[:, middle - n + 1 : middle + n]
        dense = near.unfold(1, n, 1).flip(1).unsqueeze(0)  # [1, heads, n, n]
        return dense if mask is None else dense.masked_fill(~mask, -torch.inf)

    @functools.cached_property
    def starts(self) -> list[int]:
        """The first token of every row."""
        return list(itertools.accumulate(self.lengths, initial=0))[:-1]

    @functools.cached_property
    def buckets(self) -> list[Bucket]:
        """Rows grouped by length, so that little of a bucket is padding."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, length in enumerate(self.lengths):
            groups[-(-length // _BUCKET)].append(row)
        return [self._bucket(rows) for rows in groups.values()]

    @functools.cached_property
    def order(self) -> Tensor:
        """The token index of every position of all buckets, one after the other, padding included."""
        return torch.cat([bucket.gather.flatten() for bucket in self.buckets])

    @functools.cached_property
    def padding(self) -> Tensor | None:
        """The places in `order` that are padding; None without any."""
        if all(bucket.valid is None for bucket in self.buckets):
            return None
        masks = [torch.ones_like(b.gather, dtype=torch.bool) if b.valid is None else b.valid for b in self.buckets]
        return torch.cat([mask.flatten() for mask in masks]).logical_not().nonzero().squeeze(1)

    @functools.cached_property
    def restore(self) -> Tensor:
        """[tokens] where each token is in `order`."""
        places = torch.arange(len(self.order), device=self.order.device)
        true = torch.ones_like(places, dtype=torch.bool)
        if self.padding is not None:
            true[self.padding] = False
        return torch.empty_like(self.order[true]).scatter_(0, self.order[true], places[true])

    def _bucket(self, rows: list[int]) -> Bucket:
        starts = torch.tensor([self.starts[r] for r in rows]).unsqueeze(1)
        lengths = torch.tensor([self.lengths[r] for r in rows]).unsqueeze(1)
        steps = torch.arange(int(lengths.max())).unsqueeze(0)
        valid = steps < lengths
        gather = (starts + steps.where(valid, torch.zeros_like(steps))).to(self.device)
        return Bucket(gather, None if bool(valid.all()) else valid.to(self.device))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    inlay_rows: RowBounds | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    inlay_drop: Callable[[Tensor], Tensor] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, tokens, d] -> [1, tokens, heads, d].

    `inlay_drop` is dropout of the probabilities [rows, heads, queries, keys], of padded rows.
    """
    kwargs["dropout"] = 0.0  # packed attention has none, so padded has none either, unless `inlay_drop` is given
    if inlay_drop is not None:
        return _dropped(module, query, key, value, attention_mask, scaling, inlay_drop), None
    if inlay_rows is None:
        return _padded()(module, query, key, value, attention_mask, scaling=scaling, **kwargs)  # type: ignore[no-any-return]
    causal = bool(getattr(module, "is_causal", False))
    # ModernBERT hands over its half window plus one, as flash attention wants it
    window = None if sliding_window is None else sliding_window - 1
    q, k, v = (t.squeeze(0).transpose(0, 1) for t in (query, key, value))  # [tokens, heads, d]
    if inlay_rows.back_end == "short":
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        ends, bias, far = inlay_rows.boundaries, inlay_rows.bias, -1 if window is None else window
        out = torch.ops.inlay.short_attention(q, k, v, ends, scale, causal, far, bias)[0]
    elif inlay_rows.back_end == "varlen":
        out = _varlen(q, k, v, inlay_rows, scaling, causal, window)
    else:
        out = _unpacked(q, k, v, inlay_rows, scaling, causal, window)
    return out.unsqueeze(0), None


def register() -> None:
    """Make the function known to transformers; doing so twice is harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def back_end(model: Any, longest: int, kernels: bool, biased: bool = False) -> BackEnd:
    """What runs attention over packed rows of this length; all but `buckets` need only a tensor of boundaries.

    Args:
        biased: whether something is added to the scores, which `varlen_attn` cannot do.
    """
    config, parameter = model.config, next(model.parameters())
    heads = config.num_attention_heads
    d = getattr(config, "head_dim", None) or config.hidden_size // heads
    q = torch.empty(1, heads, d, device="meta", dtype=parameter.dtype)
    k = q[:, : getattr(config, "num_key_value_heads", None) or heads]
    if kernels and q.shape == k.shape:
        from inlay.kernels.short_attention import takes

        if takes(q, longest):
            return "short"
    window = getattr(config, "local_attention", None) or getattr(config, "sliding_window", None)
    half = parameter.dtype in (torch.bfloat16, torch.float16)
    return "varlen" if parameter.is_cuda and half and not biased and _varlen_can(q, k, window) else "buckets"


def _dropped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    drop: Callable[[Tensor], Tensor],
) -> Tensor:
    """Attention step by step, to drop its probabilities: [rows, heads, tokens, d] -> [rows, tokens, heads, d]."""
    groups, tokens = query.shape[1] // key.shape[1], query.shape[2]
    key, value = (t if groups == 1 else t.repeat_interleave(groups, 1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is None and getattr(module, "is_causal", False):
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    probabilities = scores.softmax(-1, dtype=torch.float32).nan_to_num().to(query.dtype)  # padding may see nothing
    return (drop(probabilities) @ value).transpose(1, 2)


@functools.cache
def _padded() -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward


@functools.cache
def _varlen_options() -> frozenset[str]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _varlen_can(q: Tensor, k: Tensor, window: int | None) -> bool:
    options = _varlen_options()
    if not options or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    if window is not None and "window_size" not in options:
        return False
    return q.shape[1] == k.shape[1] or "enable_gqa" in options


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float | None, causal: bool, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scale}
    left = -1 if window is None else window
    if "window_size" in _varlen_options():
        options["window_size"] = (left, 0 if causal else left)
    elif causal:
        options["is_causal"] = True
    if q.shape[1] != k.shape[1]:
        options["enable_gqa"] = True
    cu, longest = rows.boundaries, rows.longest
    out = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), cu, cu, longest, longest, **options)
    assert isinstance(out, Tensor)
    return out


def _unpacked(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float | None, causal: bool, window: int | None
) -> Tensor:
    parts = []
    sizes = [bucket.gather.numel() for bucket in rows.buckets]
    # padding gets no gradient: its keys and values are masked, and its results are dropped
    moved = (torch.split(_moved(t, rows.order, rows.restore, None), sizes) for t in (q, k, v))
    masks: Sequence[Tensor | None] = rows.biased
    if rows.bias is None:
        masks = [_mask(bucket, causal, window, q.device) for bucket in rows.buckets]
    for bucket, mask, *parts_of_bucket in zip(rows.buckets, masks, *moved, strict=True):
        bq, bk, bv = (t.view(*bucket.gather.shape, *t.shape[1:]).transpose(1, 2) for t in parts_of_bucket)
        out = F.scaled_dot_product_attention(
            bq,
            bk,
            bv,
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        ).transpose(1, 2)  # [rows, longest, heads, d]
        parts.append(out.flatten(0, 1))
    return _moved(torch.cat(parts), rows.restore, rows.order, rows.padding)


def _moved(x: Tensor, to: Tensor, back: Tensor, nothing: Tensor | None) -> Tensor:
    """x[to], with a gradient of grad[back], zero at the places `nothing`.

    Moving rows back is much cheaper than adding them to zeros, as autograd would; so is `index_select` than `x[to]`.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.index_select(0, to)
    return _Moved.apply(x, to, back, nothing)  # type: ignore[no-untyped-call, no-any-return]


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, to: Tensor, back: Tensor, nothing: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, nothing)
        return x.index_select(0, to)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        back, nothing = ctx.saved_tensors
        out = grad.index_select(0, back)
        return out if nothing is None else out.index_fill_(0, nothing, 0.0), None, None, None


def _mask(bucket: Bucket, causal: bool, window: int | None, device: torch.device) -> Tensor | None:
    """[rows, 1, longest, longest] or broadcastable, True where attention may look; None for everywhere."""
    mask = None if bucket.valid is None else bucket.valid[:, None, None, :]
    if window is None and not (causal and mask is not None):
        return mask
    steps = torch.arange(bucket.gather.shape[1], device=device)
    distance = steps[:, None] - steps[None, :]
    near = torch.ones_like(distance, dtype=torch.bool) if window is None else distance.abs() <= window
    if causal:
        near = near & (distance >= 0)
    return near[None, None] if mask is None else near[None, None] & mask
