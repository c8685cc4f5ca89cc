"""Logits on their way to answers and losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torch import Tensor


@dataclass(frozen=True)
class RowOutputs(Sequence[Tensor]):
    """The logits of pooled rows in one tensor, which can also be read row by row."""

    logits: Tensor
    """[rows, labels], on the CPU."""

    def __len__(self) -> int:
        return len(self.logits)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> RowOutputs: ...
    def __getitem__(self, index: int | slice) -> Tensor | RowOutputs:
        return RowOutputs(self.logits[index]) if isinstance(index, slice) else self.logits[index]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.logits.unbind())
