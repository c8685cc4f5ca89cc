"""Is one method better than another? The exact paired sign-flip test (Fisher's randomisation test), Holm-corrected.

A pair is one dataset and one seed: both methods had the same rows. If they were equally good, each difference could as
well have had the other sign; p is the share of all 2^n choices of signs whose sum is as far from zero as the one that
was found. Nothing is assumed about how scores are distributed, and with few pairs one sees at once that nothing can be
told: no p is smaller than 2 / 2^n.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

TEST = "paired sign-flip test over seeds and datasets, Holm-corrected"
LEVEL = 0.05
_EXACT = 16
"""Pairs up to which all choices of signs are tried."""
_DRAWS = 50_000
"""Choices of signs beyond that."""


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p value of paired differences; drawn, with a fixed seed, where there are more than 16."""
    found = abs(sum(differences))
    near = found - 1e-9 * (sum(map(abs, differences)) or 1.0)  # sums in another order are not the same to the last bit
    if len(differences) > _EXACT:
        source = random.Random("sign flips")
        draws = (abs(sum(d if source.getrandbits(1) else -d for d in differences)) for _ in range(_DRAWS))
        return (1 + sum(one >= near for one in draws)) / (1 + _DRAWS)
    # the first sign can stay: flipping all of them changes nothing
    first, rest = differences[:1], differences[1:]
    sums = [sum(first)]
    for d in rest:
        sums = list(itertools.chain((s + d for s in sums), (s - d for s in sums)))
    return sum(abs(one) >= near for one in sums) / len(sums)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for being several (Holm, 1979), in their order."""
    made = [0.0] * len(values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        made[i] = largest
    return made


def can_tell(pairs: int, comparisons: int) -> bool:
    """Whether so many pairs could give a corrected p below the level at all."""
    return pairs > 0 and 2.0 ** (1 - pairs) * comparisons <= LEVEL


def pairs_needed(comparisons: int) -> int:
    """The fewest pairs with which something can be told."""
    return next(n for n in itertools.count(1) if can_tell(n, comparisons))
