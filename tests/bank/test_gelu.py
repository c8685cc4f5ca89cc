"""GELU for compiled layers: the numbers of the exact one, to the dtype's own error."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from inlay.bank.gelu import half_gelu


def test_values_and_slopes_are_exact_to_single_precision():
    x = torch.linspace(-10, 10, 20001).requires_grad_()
    exact = F.gelu(x.double())
    (slope,) = torch.autograd.grad(exact.sum(), x)
    (found,) = torch.autograd.grad(half_gelu(x).sum(), x)
    assert (half_gelu(x) - exact).abs().max() < 2e-6
    assert (found - slope).abs().max() < 2e-6
    assert (half_gelu(x) - F.gelu(x, approximate="tanh")).abs().max() > 1e-4  # it is not the other one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_it_rounds_as_the_exact_one_does(dtype):
    x = torch.linspace(-8, 8, 4001).to(dtype)
    exact = F.gelu(x.double())
    own = (half_gelu(x).double() - exact).abs()
    assert (own <= torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


def test_not_a_number_stays_one_and_large_numbers_pass():
    x = torch.tensor([float("nan"), 1e4, 0.0, -1e4])
    assert torch.allclose(half_gelu(x), torch.tensor([float("nan"), 1e4, 0.0, 0.0]), equal_nan=True)
