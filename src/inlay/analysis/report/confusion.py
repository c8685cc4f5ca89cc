"""Which labels are confused: the confusion matrix, the scores of each label, the pairs that are confused most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Confusion:
    """Counts of (right label, answer)."""

    labels: tuple[str, ...]
    """The adapter's labels, then those of the rows that it does not know."""
    counts: Mapping[tuple[str, str], int]

    @property
    def matrix(self) -> list[list[int]]:
        """A row for every right label, a column for every answer."""
        return [[self.counts.get((gold, answer), 0) for answer in self.labels] for gold in self.labels]

    def rows_of(self, label: str) -> int:
        """How many rows have a label."""
        return sum(n for (gold, _), n in self.counts.items() if gold == label)

    def scores(self, label: str) -> tuple[int, float, float, float]:
        """Rows, precision, recall and F1 of a label; 0 if there is nothing to divide by."""
        hits = self.counts.get((label, label), 0)
        answered = sum(n for (_, answer), n in self.counts.items() if answer == label)
        rows = self.rows_of(label)
        f1 = 2 * hits / (answered + rows) if hits else 0.0
        return rows, hits / answered if answered else 0.0, hits / rows if rows else 0.0, f1

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """(right, answer, rows), the commonest mistakes first."""
        wrong = [(gold, answer, n) for (gold, answer), n in self.counts.items() if gold != answer]
        return sorted(wrong, key=lambda mistake: (-mistake[2], mistake[0], mistake[1]))[:most]


def confusion(gold: Sequence[str], answers: Sequence[str], labels: Sequence[str]) -> Confusion:
    """Count the pairs of right label and answer."""
    unknown = sorted(set(gold) - set(labels))
    return Confusion((*labels, *unknown), dict(Counter(zip(gold, answers, strict=True))))
