"""Random numbers that belong to a key, not to a position in a global stream.

Everything random about a slot (initial values, dropout, mixout, L0 noise) is a function of its own seed, its
own step and the name of the place, so it does not depend on which other slots are in the batch.

Dropout over all tokens at once (`keyed_dropout`) needs no generator: whether an element is kept is a hash of the
token's key, its number among its slot's tokens, the place and the column. The bits are the same on every device,
compiled or not.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from inlay.kernels.shared import COLUMN_STRIDE, MULTIPLIERS, TOKEN_STRIDE, keep_scale, lane_cut


def generator(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by a hash of the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "little") >> 1)


@functools.lru_cache(4096, typed=True)  # a step needs each slot's number twice: for its tokens and for its rows
def number(*key: object) -> int:
    """A key as a signed 32-bit number."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little", signed=True)


@dataclass(frozen=True)
class Keys:
    """What makes a training pass's noise reproducible: each slot's seed and step."""

    of_slot: Mapping[int, tuple[int, int]]
    """slot -> (seed, step); a slot that is not here is evaluated, not trained."""
    without_dropout: frozenset[int] = frozenset()
    """Slots that train without dropout; their other noise stays."""
    attention_dropout: frozenset[int] = frozenset()
    """Slots that train with dropout of attention probabilities too."""
    head_dropout: Mapping[int, float] = field(default_factory=dict)
    """slot -> its dropout in front of the head; other slots have the base's."""
    tokens_before: Mapping[int, int] = field(default_factory=dict)
    """slot -> how many of its tokens other processes have before these, where a batch is shared among processes."""
    rows_before: Mapping[int, int] = field(default_factory=dict)
    """slot -> how many of its rows other processes have before these."""

    def for_rows(self) -> Keys:
        """The keys for noise on pooled rows, which counts rows instead of tokens."""
        return replace(self, tokens_before=self.rows_before)

    def number(self, slot: int) -> int:
        """A slot's seed and step as one number, for `keyed_dropout`."""
        return number(*self.of_slot[slot])

    def uniform(self, slot: int, place: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform numbers in (0, 1) for one slot at one place."""
        noise = torch.empty(shape, dtype=torch.float32, device=device)
        noise.uniform_(generator=generator(*self.of_slot[slot], place, device=device))
        return noise.clamp_(1e-6, 1 - 1e-6)

    def keep(self, slot: int, place: str, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """A mask for one slot at one place: 0 with probability p, else 1 / (1 - p)."""
        mask = torch.empty(shape, dtype=torch.float32, device=device)
        mask.bernoulli_(1 - p, generator=generator(*self.of_slot[slot], place, device=device))
        return mask.div_(1 - p) if p < 1 else mask


def mix(h: Tensor) -> Tensor:
    """The hash lowbias32 of int32 numbers, in wrapping arithmetic."""
    first, second = MULTIPLIERS
    h = h ^ (h >> 16).bitwise_and_(0xFFFF)  # the mask makes the arithmetic shift a logical one
    h *= first  # in place from here on: on the CPU, memory that is touched first costs more than the arithmetic
    h ^= (h >> 15).bitwise_and_(0x1FFFF)
    h *= second
    h ^= (h >> 16).bitwise_and_(0xFFFF)
    return h


def keep_lanes(key: Tensor, local: Tensor, place: Tensor, width: int) -> Tensor:
    """16 random bits for every element, as signed numbers: int16 [tokens, width].

    Args:
        key: int32 [tokens], of the token's slot: its seed and step.
        local: int32 [tokens], the token's number among its slot's.
        place: int32 [], of the place in the model, on the device of the key.
        width: how many columns.
    """
    token = mix(mix(key ^ place) + local * TOKEN_STRIDE).unsqueeze(1)
    if torch.compiler.is_compiling() or sys.byteorder == "big":  # element by element, to fuse with what is around it
        column = torch.arange(width, dtype=torch.int32, device=key.device)
        h = mix(token + (column >> 1) * COLUMN_STRIDE)
        return torch.where((column & 1) == 1, h >> 16, h).to(torch.int16)
    column = torch.arange((width + 1) // 2, dtype=torch.int32, device=key.device)
    return mix(token + column * COLUMN_STRIDE).view(torch.int16)[:, :width]


def keyed_dropout(x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> Tensor:
    """Dropout of x [tokens, width] by the bits of `keep_lanes`; a token whose `local` is negative stays as it is."""
    if torch.compiler.is_compiling():
        return _drop(x, *_dropped(x, key, local, place, p))
    kernel = _dropout_kernel() if x.is_cuda else None
    if kernel is not None and x.dtype in (torch.bfloat16, torch.float16, torch.float32):
        return kernel(x, key, local, place, p)
    dropped: Tensor = _KeyedDropout.apply(x, key, local, place, p)  # type: ignore[no-untyped-call]
    return dropped


def _dropped(x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """[tokens, width] whether an element is dropped, and [tokens, 1] the factor of those that are not."""
    cut = lane_cut(p)
    trained = (local >= 0).unsqueeze(1)
    if cut > 32767:  # no int16
        dropped = trained.expand(x.shape)
    else:
        dropped = (keep_lanes(key, local, place, x.shape[1]) < cut).logical_and_(trained)
    wide = torch.promote_types(x.dtype, torch.float32)
    factor = torch.full_like(local, keep_scale(p), dtype=wide).masked_fill_(local < 0, 1.0)
    return dropped, factor.unsqueeze(1)


def _drop(x: Tensor, dropped: Tensor, factor: Tensor) -> Tensor:
    # filled, not multiplied by 0, so that dropped elements are 0 even where x is infinite
    return (x * factor).to(x.dtype).masked_fill_(dropped, 0.0)


class _KeyedDropout(torch.autograd.Function):
    """Keeps one bool per element for the backward pass instead of a mask of numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, local: Tensor, place: Tensor, p: float) -> Tensor:
        dropped, factor = _dropped(x, key, local, place, p)
        ctx.save_for_backward(dropped, factor)
        return _drop(x, dropped, factor)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _drop(grad, *ctx.saved_tensors), None, None, None, None


@functools.cache
def _dropout_kernel() -> Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor] | None:
    try:
        from inlay.kernels.dropout import dropout
    except ImportError:  # no triton
        return None
    return dropout
