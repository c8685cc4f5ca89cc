"""Points in the plane in which they differ most: their first two principal components."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.errors import DataError


@dataclass(frozen=True)
class Projection:
    """The two directions in which points differ most."""

    points: Tensor
    """[n, 2]"""
    shares: tuple[float, float]
    """The shares of the variance."""
    directions: Tensor
    """[2, d], of length 1; the number with the largest magnitude is positive, since a direction has no sign."""


def pca(points: Tensor) -> Projection:
    """The first two principal components of points [n, d]."""
    centred = (points - points.mean(0)).double()
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    largest = directions.abs().argmax(1, keepdim=True)
    directions = (directions * directions.gather(1, largest).sign())[:2]
    variances = sizes.square()
    if len(variances) < 2 or not float(variances.sum()):
        raise DataError("all tokens lie in one place: there is no plane to show them in")
    first, second = (variances[:2] / variances.sum()).tolist()
    return Projection(centred @ directions.T, (first, second), directions)
