"""The paired test: against scipy's, Holm's correction by hand, and when nothing can be told."""

from __future__ import annotations

import itertools
import random

import numpy
import pytest
from scipy import stats

from inlay.comparison.significance import LEVEL, can_tell, holm, pairs_needed, sign_flip


def by_scipy(differences: list[float]) -> float:
    pair = (numpy.array(differences), numpy.zeros(len(differences)))
    test = {"permutation_type": "samples", "n_resamples": numpy.inf, "alternative": "two-sided"}
    return float(stats.permutation_test(pair, lambda a, b: float((a - b).mean()), vectorized=False, **test).pvalue)


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_exact_as_scipy_has_it(pairs: int, shift: float):
    source = random.Random(f"{pairs} {shift}")
    differences = [source.gauss(shift, 1.0) for _ in range(pairs)]
    assert sign_flip(differences) == pytest.approx(by_scipy(differences))


def test_ties_and_zeros_as_scipy_has_them():
    for differences in ([0.1, 0.1, 0.2, -0.1], [0.0, 0.0, 0.3, 0.1, 0.2], [0.3, 0.1, 0.2, 0.6, -0.6]):
        assert sign_flip(differences) == pytest.approx(by_scipy(differences))
    assert sign_flip([0.0, 0.0, 0.0]) == 1.0


def test_the_smallest_p_is_that_of_equal_signs():
    assert sign_flip([0.4, 0.1, 0.2, 0.3, 0.9]) == 2 / 2**5
    assert sign_flip([-0.4, -0.1, -0.2, -0.3, -0.9]) == 2 / 2**5


def test_many_pairs_are_drawn_and_near_the_exact_value():
    source = random.Random(7)
    differences = [source.gauss(0.4, 1.0) for _ in range(17)]
    sums = [0.0]
    for d in differences:
        sums = [s + sign * d for s, sign in itertools.product(sums, (1, -1))]
    exact = sum(abs(s) >= abs(sum(differences)) - 1e-9 for s in sums) / len(sums)
    assert 0.01 < exact < 0.9
    assert sign_flip(differences) == pytest.approx(exact, abs=0.01)
    assert sign_flip(differences) == sign_flip(differences)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_too_few_pairs():
    for comparisons in (1, 4, 9):
        needed = pairs_needed(comparisons)
        assert can_tell(needed, comparisons)
        assert not can_tell(needed - 1, comparisons)
        assert holm([sign_flip([1.0] * needed)] * comparisons)[0] <= LEVEL
        assert holm([sign_flip([1.0] * (needed - 1))] * comparisons)[0] > LEVEL
    assert pairs_needed(1) == 6
    assert can_tell(9, 9)  # three datasets, three seeds
    assert not can_tell(0, 1)
