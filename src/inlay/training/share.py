"""A process's share of a run's rows, where several processes train one batch together.

A share is rows one after the other, so that its tokens are too, and dropout can count them as the whole batch would.
Losses are means over the whole batch: `of` takes what the whole batch's targets say of the rows that are here, their
weights included, so that the shares' losses add up to the loss of all rows, whatever the mean is over.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inlay.errors import RunError
from inlay.tasks import Row, Targets, Task


@dataclass(frozen=True)
class Share:
    """Rows and tokens from the first number up to the second."""

    rows: tuple[int, int]
    tokens: tuple[int, int]
    counts: bool = True
    """Whether its losses count; where there are fewer rows than processes, one runs a row that others have too."""

    def rows_of(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows that are here."""
        return rows[slice(*self.rows)]

    def of(self, targets: Targets, task: Task) -> Targets:
        """The units that look at rows here; their weights stay those of the whole batch."""
        low, high = self.tokens if task.per_token else self.rows
        at = targets.at if targets.at.dim() == 2 else targets.at.unsqueeze(1)
        last = at.amax(1)
        first = torch.where(at < 0, last.unsqueeze(1), at).amin(1)
        inside = (first >= low) & (last < high)
        if bool(((last >= low) & (first < high) & ~inside & (last >= 0)).any()):
            raise RunError(f"{task.name} compares several rows at once; its batches cannot be shared among processes")
        chosen = (inside | ((last < 0) & (low == 0))) if self.counts else torch.zeros_like(inside)
        moved = torch.where(targets.at < 0, -1, targets.at - low)[chosen]
        return Targets(moved, targets.value[chosen], targets.weight[chosen])


def share(lengths: Sequence[int], rank: int, size: int) -> Share:
    """The share of one of `size` processes in rows of these lengths: about as many tokens for each of them."""
    ends = list(itertools.accumulate(lengths, initial=0))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(ends)]
    start, end = (bisect.bisect_left(middles, ends[-1] * r / size) for r in (rank, rank + 1))
    if start == end:
        return Share((0, 1), (0, ends[1]), counts=False)
    return Share((start, end), (ends[start], ends[end]))
