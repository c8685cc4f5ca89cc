"""A linear head by logistic regression: the weights that fit a few pooled states, with a penalty on their size.

    smallest  C * sum of cross-entropies  +  |W|^2 / 2

where states are first divided by the root of their mean square length, so that C means the same for every base. It is
scikit-learn's LogisticRegression. With two classes that has one vector of weights; here each class gets half of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

C = 1.0
_ABSENT = -5.0
"""How far the bias of a class without rows lies below the least bias."""


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
    present = sorted(set(classes))
    y = torch.tensor([present.index(label) for label in classes])
    class_weights = None if weights is None else torch.tensor([weights[c] for c in present], dtype=torch.float64)
    w = torch.zeros(x.shape[1], len(present), dtype=torch.float64, requires_grad=True)
    b = torch.zeros(len(present), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [w, b], max_iter=500, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )
    penalty = 1.0 if len(present) == 2 else 0.5  # two opposite vectors of half the length

    def loss() -> Tensor:
        search.zero_grad()
        total = C * F.cross_entropy(x @ w + b, y, class_weights, reduction="sum") + penalty * w.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        search.step(loss)  # type: ignore[no-untyped-call]
    weight, centred = torch.zeros(x.shape[1], labels), b.detach() - b.detach().mean()
    bias = torch.full((labels,), float(centred.min()) + _ABSENT)
    weight[:, present], bias[present] = (w.detach() / length).float(), centred.float()
    return {"weight": weight, "bias": bias}
