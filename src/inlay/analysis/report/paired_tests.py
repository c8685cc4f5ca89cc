"""Whether two adapters differ on the same rows: a bootstrap interval of the metric, and McNemar's exact test.

The bootstrap draws rows with replacement, the same for both, and measures both again. McNemar's test looks at the rows
that only one of them has right: if the two were equally good, both cases would be equally likely.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DRAWS = 1000
_WORK = 2_000_000
"""The most rows that are measured again, in all draws together."""


@dataclass(frozen=True)
class Difference:
    """The second adapter's deciding metric minus the first's."""

    metric: str
    value: float
    low: float
    high: float
    """The ends of the 95 % interval."""
    draws: int
    only_first: int | None
    """Rows that only the first has right; None if rows are not simply right or wrong."""
    only_second: int | None
    p: float | None
    """The p value of McNemar's test."""

    @property
    def is_clear(self) -> bool:
        """Whether zero is outside the interval."""
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
    """Compare two adapters.

    Args:
        scores: for each adapter, the metric as a function of the rows' numbers.
        right: for each adapter, whether each row is right.
    """
    first, second = scores
    everything = range(rows)
    draws = max(200, min(DRAWS, _WORK // rows))
    source = random.Random("bootstrap")
    values = []
    for _ in range(draws):
        sample = source.choices(everything, k=rows)
        values.append(second(sample) - first(sample))
    values.sort()
    low, high = (values[round(share * (draws - 1))] for share in (0.025, 0.975))
    value = second(everything) - first(everything)
    if right is None:
        return Difference(metric, value, low, high, draws, None, None, None)
    pairs = list(zip(*right, strict=True))
    only_first, only_second = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    return Difference(metric, value, low, high, draws, only_first, only_second, mcnemar(only_first, only_second))


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p value of the exact test; 1 if they never differ."""
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n))
