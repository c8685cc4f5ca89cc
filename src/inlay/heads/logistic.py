"""A linear head by logistic regression: the weights that fit a few pooled states, with a penalty on their size.

    smallest  C * sum of cross-entropies  +  |W|^2 / 2

where states are divided by the root of their mean square length first, so that C means the same for every base. It is
scikit-learn's LogisticRegression: with two classes that has one vector of weights, half of which each of ours gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

C = 1.0
_ABSENT = -5.0
"""How far below the least bias a class is that has no row."""


def fit(
    states: Tensor, classes: Sequence[int], labels: int, weights: Sequence[float] | None = None
) -> dict[str, Tensor]:
    """weight [d, labels] and bias [labels] of a linear head, fp32.

    Args:
        states: [rows, d].
        weights: [labels] how much each class counts.
    """
    x = states.detach().double().cpu()
    length = x.square().sum(1).mean().sqrt().clamp(min=1e-12)
    x = x / length
    there = sorted(set(classes))
    y = torch.tensor([there.index(one) for one in classes])
    each = None if weights is None else torch.tensor([weights[one] for one in there], dtype=torch.float64)
    w = torch.zeros(x.shape[1], len(there), dtype=torch.float64, requires_grad=True)
    b = torch.zeros(len(there), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [w, b], max_iter=500, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )
    penalty = 1.0 if len(there) == 2 else 0.5  # two opposite vectors of half the length

    def loss() -> Tensor:
        search.zero_grad()
        total = C * F.cross_entropy(x @ w + b, y, each, reduction="sum") + penalty * w.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        search.step(loss)  # type: ignore[no-untyped-call]
    weight, found = torch.zeros(x.shape[1], labels), b.detach() - b.detach().mean()
    bias = torch.full((labels,), float(found.min()) + _ABSENT)
    weight[:, there], bias[there] = (w.detach() / length).float(), found.float()
    return {"weight": weight, "bias": bias}
