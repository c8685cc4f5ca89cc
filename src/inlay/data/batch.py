"""A batch of token rows of any lengths, kept flat: no padding until a model asks for it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from inlay.errors import InlayError

_DTYPES = {"i": torch.int32, "B": torch.uint8, "q": torch.int64}


@dataclass(frozen=True)
class Batch:
    """Rows of token ids, one after the other."""

    ids: Tensor
    """[tokens]"""
    lengths: tuple[int, ...]
    types: Tensor | None = None
    """[tokens] token type of each token, where the model has them."""
    states: Tensor | None = None
    """[tokens, d] what goes into the layer `layer`, if that is known already: the layers below it are not run."""
    layer: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> Batch:
        """Make a batch from rows of ids; an empty row is an error, because it has no first token."""
        lengths = tuple(map(len, rows))
        if not all(lengths) or not lengths:
            raise InlayError(
                f"row {lengths.index(0)} of the batch has no tokens" if lengths else "the batch has no rows"
            )
        if types is not None and tuple(map(len, types)) != lengths:
            raise InlayError("token types and ids differ in length")
        return cls(_flat(rows), lengths, None if types is None else _flat(types))

    def take(self, order: Sequence[int]) -> Batch:
        """The same rows in another order, or some of them."""
        if list(order) == list(range(len(self.lengths))):
            return self

        lengths, rows = torch.tensor(self.lengths), torch.tensor(order)
        starts, own = (lengths.cumsum(0) - lengths)[rows], lengths[rows]
        tokens = repeated(starts - (own.cumsum(0) - own), own)
        tokens += torch.arange(len(tokens))
        types, states = (None if t is None else t[tokens.to(t.device)] for t in (self.types, self.states))
        return Batch(self.ids[tokens.to(self.ids.device)], tuple(own.tolist()), types, states, self.layer)


def repeated(values: Tensor, counts: Tensor) -> Tensor:
    """Each of `values` [n, ...] so many times in a row, as `torch.repeat_interleave` gives it, on the CPU.

    That one wakes all threads for a few numbers; with 16 of them a call took 300 us.
    """
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    owner = torch.zeros(total + 1, dtype=torch.long).index_add_(0, ends, torch.ones_like(ends)).cumsum(0)[:total]
    return values.gather(0, owner) if values.dim() == 1 else values[owner]


def _flat(rows: Sequence[Sequence[int]]) -> Tensor:
    """One tensor of all numbers. Windows are copied as bytes, lists go through arrays: both beat a list of numbers."""
    kind = _kind(rows)
    parts: list[Any] = list(rows) if kind else [array("q", row) for row in rows]
    return torch.frombuffer(bytearray().join(parts), dtype=_DTYPES[kind or "q"]).long()


def _kind(rows: Sequence[Sequence[int]]) -> str | None:
    """The format of windows that can be copied as they are; None for anything else."""
    if set(map(type, rows)) != {memoryview} or not all(map(attrgetter("contiguous"), rows)):
        return None
    formats = set(map(attrgetter("format"), rows))
    return formats.pop() if len(formats) == 1 and formats <= _DTYPES.keys() else None
