"""The head by logistic regression, against scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from inlay.heads import logistic


def rows(n: int, d: int, labels: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    random = torch.Generator().manual_seed(seed)
    classes = [i % labels for i in range(n)]
    middles = torch.randn(labels, d, generator=random)
    return middles[classes] + 1.5 * torch.randn(n, d, generator=random), classes


@pytest.mark.parametrize(("n", "d", "labels"), [(16, 40, 2), (12, 40, 3), (60, 8, 2), (60, 8, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_scikit_learns(n, d, labels, weighted):
    states, classes = rows(n, d, labels)
    weights = [0.5 + i for i in range(labels)] if weighted else None
    found = logistic.fit(states, classes, labels, weights)
    x = (states / states.square().sum(1).mean().sqrt()).double().numpy()
    given = None if weights is None else dict(enumerate(weights))
    oracle = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000, class_weight=given).fit(x, classes)
    expected = torch.from_numpy(oracle.predict_proba(x)).float()
    torch.testing.assert_close((states @ found["weight"] + found["bias"]).softmax(1), expected, atol=1e-5, rtol=1e-4)
    other = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000, class_weight=given).fit(x, classes)  # the control
    assert abs(other.predict_proba(x) - oracle.predict_proba(x)).max() > 1e-3


def test_the_scale_of_states_does_not_matter():
    states, classes = rows(20, 6, 3)
    small, large = (logistic.fit(s * states, classes, 3) for s in (1e-3, 1e3))
    logits = [s * states @ one["weight"] + one["bias"] for s, one in ((1e-3, small), (1e3, large))]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_a_class_without_rows_is_the_unlikeliest():
    states, classes = rows(20, 6, 3)
    found = logistic.fit(states, [2 * (one > 0) for one in classes], 4)
    logits = states @ found["weight"] + found["bias"]
    assert set(logits.argmin(1).tolist()) <= {1, 3}
    assert not found["weight"][:, [1, 3]].any()


def test_one_class_alone_is_the_answer():
    states, _ = rows(5, 6, 2)
    found = logistic.fit(states, [1] * 5, 2)
    assert (states @ found["weight"] + found["bias"]).argmax(1).tolist() == [1] * 5
