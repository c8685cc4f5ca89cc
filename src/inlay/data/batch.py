"""A batch of token rows of any lengths, kept flat: no padding until a model asks for it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from inlay.errors import InlayError


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
        empty = [i for i, row in enumerate(rows) if len(row) == 0]
        if empty or not rows:
            raise InlayError(f"row {empty[0]} of the batch has no tokens" if empty else "the batch has no rows")
        if types is not None and [len(t) for t in types] != [len(r) for r in rows]:
            raise InlayError("token types and ids differ in length")
        return cls(_flat(rows), tuple(len(row) for row in rows), None if types is None else _flat(types))

    def take(self, order: Sequence[int]) -> Batch:
        """The same rows in another order, or some of them."""
        if list(order) == list(range(len(self.lengths))):
            return self

        def pick(flat: Tensor) -> Tensor:
            parts = torch.split(flat, list(self.lengths))
            return torch.cat([parts[i] for i in order])

        types, states = (None if t is None else pick(t) for t in (self.types, self.states))
        return Batch(pick(self.ids), tuple(self.lengths[i] for i in order), types, states, self.layer)


def _flat(rows: Sequence[Sequence[int]]) -> Tensor:
    """One tensor of all numbers; through an array, which is several times faster than from a list."""
    return torch.frombuffer(array("q", chain.from_iterable(rows)), dtype=torch.long)
