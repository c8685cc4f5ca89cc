"""A batch of token rows of any lengths, kept flat: no padding until a model asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from torch import Tensor

from inlay.errors import InlayError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of token ids, one after the other."""

    ids: Array
    """[tokens]"""
    lengths: Array
    """[rows]"""
    types: Array | None = None
    """[tokens] token type of each token, where the model has them."""
    states: Tensor | None = None
    """[tokens, d] the input of the layer `layer`, if known already: the layers below it are not run."""
    layer: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] | None = None) -> Batch:
        """Make a batch from rows of ids; an empty row is an error, because it has no first token.

        Args:
            types: token types of every row; those of a row without any are 0.
        """
        lengths = list(map(len, rows))
        if not lengths or not all(lengths):
            empty = f"row {lengths.index(0)} of the batch has no tokens" if lengths else ""
            raise InlayError(empty or "the batch has no rows")
        if types is None or types.count(None) == len(types):
            return cls(_flat(rows), np.fromiter(lengths, np.int64))
        filled = [[0] * n if row is None else row for n, row in zip(lengths, types, strict=False)]
        if len(types) != len(rows) or list(map(len, filled)) != lengths:
            raise InlayError("token types and ids differ in length")
        return cls(_flat(rows), np.fromiter(lengths, np.int64), _flat(filled))

    def take(self, order: Array) -> Batch:
        """The same rows in another order, or some of them."""
        starts, lengths = (self.lengths.cumsum() - self.lengths)[order], self.lengths[order]
        tokens = ramp(lengths, starts)
        types = None if self.types is None else self.types[tokens]
        states = None if self.states is None else self.states[tokens]
        return Batch(self.ids[tokens], lengths, types, states, self.layer)


def ramp(lengths: Array, starts: Array | int = 0) -> Array:
    """0, 1 ... n - 1 for every length n, one after the other; each counts from its start, if there are any."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    counted: Array = np.arange(total) + (starts - (ends - lengths)).repeat(lengths)
    return counted


def _flat(rows: Sequence[Sequence[int]]) -> Array:
    """All numbers in one array. Windows are copied as bytes; lists are read one after the other, never joined."""
    if kind := _kind(rows):
        windows: Any = rows
        return np.frombuffer(bytearray().join(windows), dtype=kind).astype(np.int32)
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32)


def _kind(rows: Sequence[Sequence[int]]) -> str | None:
    """The format of windows that can be copied as they are; None for anything else."""
    if set(map(type, rows)) != {memoryview} or not all(map(attrgetter("contiguous"), rows)):
        return None
    formats = set(map(attrgetter("format"), rows))
    return formats.pop() if len(formats) == 1 and formats <= {"i", "B", "q"} else None
