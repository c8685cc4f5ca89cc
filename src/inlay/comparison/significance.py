"""Is one method better than another? The exact paired sign-flip test (Fisher's randomisation test), Holm-corrected.

A pair is a dataset and a seed: both methods had the same rows. If they were equally good, each difference could just as
well have the other sign; p is the share of all 2^n choices of signs whose sum is at least as far from zero as the
observed one. Nothing is assumed about how scores are distributed, and it is plain when there are too few pairs: no p is
smaller than 2 / 2^n.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

TEST = "paired sign-flip test over seeds and datasets, Holm-corrected"
LEVEL = 0.05
_EXACT = 16
"""The most pairs for which all choices of signs are tried."""
_DRAWS = 50_000
"""Choices of signs that are drawn for more pairs."""


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p value of paired differences; from draws with a fixed seed if there are more than 16."""
    observed = abs(sum(differences))
    near = observed - 1e-9 * (sum(map(abs, differences)) or 1.0)  # in another order, the last bits of a sum differ
    if len(differences) > _EXACT:
        source = random.Random("sign flips")
        draws = (abs(sum(d if source.getrandbits(1) else -d for d in differences)) for _ in range(_DRAWS))
        return (1 + sum(total >= near for total in draws)) / (1 + _DRAWS)
    # the first sign is fixed: flipping all signs changes nothing
    first, rest = differences[:1], differences[1:]
    sums = [sum(first)]
    for d in rest:
        sums = list(itertools.chain((s + d for s in sums), (s - d for s in sums)))
    return sum(abs(total) >= near for total in sums) / len(sums)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for several comparisons (Holm, 1979), in the same order."""
    corrected = [0.0] * len(values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = largest
    return corrected


def can_tell(pairs: int, comparisons: int) -> bool:
    """Whether this many pairs can give a corrected p below the level at all."""
    return pairs > 0 and 2.0 ** (1 - pairs) * comparisons <= LEVEL


def pairs_needed(comparisons: int) -> int:
    """The fewest pairs that can show a difference."""
    return next(n for n in itertools.count(1) if can_tell(n, comparisons))
