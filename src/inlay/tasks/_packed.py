"""Examples that have one row each and no target: all rows in one batch, all logits in one tensor.

Both classes are sequences too, so code that wants rows or logits one by one can index them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from inlay.data.batch import Array, Batch
from inlay.tasks import Row


class PackedRows(Sequence[Sequence[Row]]):
    """The one row of every example."""

    def __init__(self, batch: Batch, examples: Sequence[int] | Array | None = None):
        """
        Args:
            examples: the rows of the batch that belong to these examples; all of them by default.
        """
        self.batch, self.examples = batch, np.arange(len(batch.lengths)) if examples is None else np.array(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: Any) -> Any:
        """The row of one example, as a list; not of several examples."""
        end, length = self._ends[self.examples[i]], self.batch.lengths[self.examples[i]]
        tokens = slice(end - length, end)
        types = None if self.batch.types is None else self.batch.types[tokens].data
        return [Row(self.batch.ids[tokens].data, types, example=i)]

    def take(self, examples: Sequence[int]) -> PackedRows:
        """The rows of these examples."""
        return PackedRows(self.batch, self.examples[list(examples)])

    @cached_property
    def _ends(self) -> Array:
        ends: Array = self.batch.lengths.cumsum()
        return ends


class PooledOutputs(Sequence[Sequence[Tensor]]):
    """The logits of every example's only row."""

    def __init__(self, logits: Tensor, widths: Array):
        """
        Args:
            logits: [examples, labels] on the CPU; -inf in the columns beyond an example's own labels.
            widths: [examples] how many labels each example's adapter has.
        """
        self.logits, self.widths = logits, widths

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, i: Any) -> Any:
        """The logits of one example, not of a slice."""
        return [self.logits[i, : self.widths[i]]]

    def take(self, examples: Sequence[int]) -> PooledOutputs:
        """The logits of these examples, with as many columns as they need."""
        numbers = list(examples)
        widths = self.widths[numbers]
        return PooledOutputs(self.logits[numbers, : widths.max()], widths)
