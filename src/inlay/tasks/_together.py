"""One answer from those of several adapters: means of probabilities, votes, and how far they disagree."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def mean(values: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Column by column, over members."""
    total = sum(weights)
    columns = zip(*values, strict=True)
    return [math.fsum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]


def disagreement(chances: Sequence[Sequence[float]], weights: Sequence[int]) -> float:
    """How far members differ in what they find likely, 0 to 1.

    The entropy of the mean minus the mean entropy, of the most that it can be: 1 where each is certain of another
    class, 0 where all say the same, however unsure of it they are.
    """
    total = sum(weights)
    largest = min(math.log(len(chances[0])), entropy([w / total for w in weights]))
    inside = math.fsum(w * entropy(p) for w, p in zip(weights, chances, strict=True)) / total
    return min(1.0, max(0.0, (entropy(mean(chances, weights)) - inside) / largest)) if largest else 0.0


def entropy(chances: Sequence[float]) -> float:
    """The entropy in nats."""
    return -math.fsum(p * math.log(p) for p in chances if p > 0)


def deviation(values: Sequence[float], weights: Sequence[int]) -> float:
    """The standard deviation of members' values."""
    (middle,) = mean([[value] for value in values], weights)
    return math.sqrt(mean([[(value - middle) ** 2] for value in values], weights)[0])


def shares(votes: Sequence[_T], weights: Sequence[int]) -> dict[_T, float]:
    """Vote -> its share of the votes, in the order in which votes first occur."""
    share_of_vote: dict[_T, float] = {}
    for vote, weight in zip(votes, weights, strict=True):
        share_of_vote[vote] = share_of_vote.get(vote, 0.0) + weight / sum(weights)
    return share_of_vote
