"""Operators of our own."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE

from inlay.kernels.routed_sums import segment_sum


def test_a_gradient_that_is_not_there_is_refused():
    """Autograd would go through the operator's own code, and miss what its kernel does."""
    g = torch.ones(3, 4, device=DEVICE, requires_grad=True)
    entry, bounds = (torch.tensor(numbers, dtype=torch.int32, device=DEVICE) for numbers in ([1], [0, 3]))
    out = segment_sum(g, entry, bounds, 2)
    assert out[1].tolist() == [3.0] * 4
    with pytest.raises(NotImplementedError, match="inlay::segment_sum has no gradient"):
        out.sum().backward()
