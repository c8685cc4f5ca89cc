"""Which labels are taken for which: the confusion matrix, the scores of each label, the pairs confused most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Confusion:
    """Counts of (right label, answer)."""

    labels: tuple[str, ...]
    """The adapter's, then those of the rows that it does not know."""
    counts: Mapping[tuple[str, str], int]

    @property
    def matrix(self) -> list[list[int]]:
        """A row for every right label, a column for every answer."""
        return [[self.counts.get((gold, said), 0) for said in self.labels] for gold in self.labels]

    def rows_of(self, label: str) -> int:
        """How many rows have a label."""
        return sum(n for (gold, _), n in self.counts.items() if gold == label)

    def scores(self, label: str) -> tuple[int, float, float, float]:
        """Rows, precision, recall and F1 of a label; 0 where there is nothing to divide by."""
        hit = self.counts.get((label, label), 0)
        said = sum(n for (_, answer), n in self.counts.items() if answer == label)
        rows = self.rows_of(label)
        f1 = 2 * hit / (said + rows) if hit else 0.0
        return rows, hit / said if said else 0.0, hit / rows if rows else 0.0, f1

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """(right, answer, rows), the commonest mistakes first."""
        wrong = [(gold, said, n) for (gold, said), n in self.counts.items() if gold != said]
        return sorted(wrong, key=lambda one: (-one[2], one[0], one[1]))[:most]


def confusion(gold: Sequence[str], said: Sequence[str], labels: Sequence[str]) -> Confusion:
    """Count pairs."""
    strange = sorted(set(gold) - set(labels))
    return Confusion((*labels, *strange), dict(Counter(zip(gold, said, strict=True))))
