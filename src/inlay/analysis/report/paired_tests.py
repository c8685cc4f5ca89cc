"""Are two adapters different on the same rows: a bootstrap interval of the metric, and McNemar's exact test.

The bootstrap draws rows with replacement, the same for both, and measures both again. McNemar's test looks at rows that
one has right and the other wrong: if the two were equally good, either would be as likely.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DRAWS = 1000
_WORK = 2_000_000
"""Rows that are measured again at most, all draws together."""


@dataclass(frozen=True)
class Difference:
    """How much better the second is, in the metric that decides."""

    metric: str
    value: float
    low: float
    high: float
    """Of the 95 % interval."""
    draws: int
    only_first: int | None
    """Rows that only the first has right; None where rows are not simply right or wrong."""
    only_second: int | None
    p: float | None
    """Of McNemar's test."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return dict(vars(self))


def difference(
    metric: str,
    scores: tuple[Callable[[Sequence[int]], float], Callable[[Sequence[int]], float]],
    rows: int,
    right: tuple[Sequence[bool], Sequence[bool]] | None,
) -> Difference:
    """
    Args:
        scores: of each adapter, the metric on the rows with these numbers.
        right: of each adapter, row by row, whether it is right.
    """
    first, second = scores
    everything = range(rows)
    draws = max(200, min(DRAWS, _WORK // rows))
    source = random.Random("bootstrap")
    found = []
    for _ in range(draws):
        some = source.choices(everything, k=rows)
        found.append(second(some) - first(some))
    found.sort()
    low, high = (found[round(share * (draws - 1))] for share in (0.025, 0.975))
    value = second(everything) - first(everything)
    if right is None:
        return Difference(metric, value, low, high, draws, None, None, None)
    pairs = list(zip(*right, strict=True))
    only_first, only_second = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    return Difference(metric, value, low, high, draws, only_first, only_second, mcnemar(only_first, only_second))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p value of the exact test; 1 where they never differ."""
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n))
