"""Queries, keys and values in one product: equal to three, also in their gradients, wherever those lie."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inlay.bank.joined import FusedProduct
from inlay.kernels.shared import side_by_side


def modules() -> dict[str, nn.Linear]:
    torch.manual_seed(0)
    made = {name: nn.Linear(8, width) for name, width in (("q", 4), ("k", 4), ("v", 6))}
    for module in made.values():
        module.requires_grad_(False)
    return made


def test_results_and_gradients_are_those_of_three():
    three = modules()
    x = torch.randn(1, 5, 8, requires_grad=True)
    apart = [module(x) for module in three.values()]
    weights = [torch.randn_like(y) for y in apart]
    (expected,) = torch.autograd.grad(sum((y * w).sum() for y, w in zip(apart, weights, strict=True)), x)
    fused, kept = FusedProduct(three), {}
    parts = [fused(kind, x, kept) for kind in range(3)]
    for part, y in zip(parts, apart, strict=True):
        assert torch.allclose(part, y, atol=1e-6)
    (found,) = torch.autograd.grad(sum((y * w).sum() for y, w in zip(parts, weights, strict=True)), x)
    assert torch.allclose(found, expected, atol=1e-6)
    fused.undo()
    assert torch.equal(F.linear(x, three["k"].weight, three["k"].bias), apart[1])


@pytest.mark.parametrize("without", [[], ["k"], ["q", "v"], ["q", "k", "v"]])
def test_a_bias_that_only_some_of_them_have_is_kept(without):
    three = modules()
    for name in without:
        three[name].bias = None
    x = torch.randn(1, 5, 8)
    apart = [module(x) for module in three.values()]
    fused, kept = FusedProduct(three), {}
    assert all(torch.allclose(fused(kind, x, kept), y, atol=1e-6) for kind, y in enumerate(apart))


def test_a_part_that_nobody_used_has_no_gradient():
    three = modules()
    x = torch.randn(1, 5, 8, requires_grad=True)
    part = FusedProduct(three)(0, x, {})
    (found,) = torch.autograd.grad(part.sum(), x)
    assert torch.allclose(found, torch.ones(1, 5, 4) @ three["q"].weight, atol=1e-6)


def test_what_lies_side_by_side_is_not_copied():
    whole = torch.randn(5, 3, 2, 2)
    parts = [part.reshape(1, 5, 4) for part in whole.unbind(1)]
    assert all(part.data_ptr() == whole.data_ptr() + 16 * i for i, part in enumerate(parts))  # views so far
    found = side_by_side(parts)
    assert found.data_ptr() == whole.data_ptr()
    assert torch.equal(found, torch.cat(parts, -1))
    for mixed in (parts[::-1], [parts[0], parts[1].clone(), parts[2]], [parts[0], parts[0], parts[0]]):
        assert torch.equal(side_by_side(mixed), torch.cat(mixed, -1))
