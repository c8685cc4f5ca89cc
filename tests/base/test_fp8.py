"""A base in fp8: its numbers, its gradient, rows that do not touch each other, what is refused."""

from __future__ import annotations

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

import inlay
from inlay.base import fp8
from inlay.base.fp8 import Fp8
from inlay.errors import BaseError

on_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no GPU that multiplies fp8"
)


def plain_product(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """What the hardware does, in fp32."""
    y = (a.float() * a_scale) @ (b.float() * b_scale)
    return (y if bias is None else y + bias).to(dtype)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp8 numbers without fp8 hardware."""
    monkeypatch.setattr(fp8, "product", plain_product)


def apart(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 32), (1, 7, 32), (2, 3, 32)])
def test_a_product_and_its_gradient_are_near_the_exact_ones(anywhere, shape, bias):
    weight, b = numbers(48, 32, seed=1), numbers(48, seed=2) if bias else None
    x = numbers(*shape).requires_grad_()
    exact = F.linear(x, weight, b)
    g = numbers(*exact.shape, seed=3)
    (wanted,) = torch.autograd.grad(exact, x, g)
    y = Fp8(weight, b)(x)
    (found,) = torch.autograd.grad(y, x, g)
    assert y.shape == exact.shape
    assert found.shape == x.shape
    assert 0.005 < apart(y, exact) < 0.06  # close, and fp8 indeed
    assert 0.005 < apart(found, wanted) < 0.06


def test_in_parts_it_is_the_same(anywhere):
    made, x = Fp8(numbers(48, 32, seed=1), None), numbers(5, 32).requires_grad_()
    whole, g = made(x), numbers(5, 48, seed=3)
    parts = made.parts(x, [16, 32])
    assert torch.equal(torch.cat(parts, 1), whole)
    (expected,) = torch.autograd.grad(whole, x, g)
    (found,) = torch.autograd.grad(parts, x, torch.split(g, [16, 32], 1))
    assert torch.equal(found, expected)


def test_zeros_huge_and_tiny_tokens_do_not_touch_their_neighbours(anywhere):
    weight, x = numbers(16, 32, seed=1), numbers(4, 32)
    x[0], x[1], x[2] = 0, x[1] * 1e20, x[2] * 1e-6
    y, expected = Fp8(weight, None)(x), x @ weight.T
    assert torch.equal(y[0], torch.zeros(16))
    for row in (1, 2, 3):
        assert apart(y[row], expected[row]) < 0.1
    assert torch.allclose(Fp8(weight, None)(x[3:]), y[3:], rtol=1e-5)


def test_a_layer_in_fp8_trains_and_is_restored(anywhere, monkeypatch):
    monkeypatch.setattr(Fp8, "refuse", classmethod(lambda cls, base: None))
    model = tiny.model("bert").cpu().float()
    names, batch = ["a", "b"] * 3, tiny.batch(6)

    def states(host: inlay.Host) -> Tensor:
        with torch.no_grad():
            return host.hidden(batch, [None] * 6).states

    plain = inlay.Host(model)
    expected = states(plain)
    plain.close()
    host = inlay.Host(model, weights="fp8")
    assert (host.base.form, host.base.trains) == ("fp8", True)
    assert 1e-4 < apart(states(host), expected) < 0.1
    for name in "ab":
        host.add(name, "houlsby:size=8", labels=2)
    host.keys({"a": (0, 0)})
    torch.stack(host.logits(batch, names)).sum().backward()
    assert all(g is not None and g.abs().sum() > 0 for n, g in host.gradients("a").items() if n.endswith("down"))
    with pytest.raises(BaseError, match="load it on a host without fp8"):
        host.add("w", "finetune", labels=2)
    host.close()
    assert torch.equal(states(inlay.Host(model)), expected)


def test_projections_of_odd_sizes_stay_plain():
    assert Fp8.fits(torch.zeros(48, 32))
    assert not Fp8.fits(torch.zeros(48, 20))
    assert not Fp8.fits(torch.zeros(24, 32))


@pytest.mark.skipif(tiny.DEVICE.type != "cpu", reason="about a base on the CPU")
def test_another_device_is_refused_and_leaves_the_model_alone():
    model = tiny.model("bert")
    with pytest.raises(BaseError, match=r"fp8 is for CUDA in bfloat16.* is on cpu"):
        inlay.Host(model, weights="fp8")
    inlay.Host(model)


@on_cuda
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 64), (1, 300, 64), (1, 64)])
def test_on_cuda_it_is_what_the_same_numbers_say_in_fp32(monkeypatch, shape, bias):
    weight, x = numbers(96, 64, seed=1).cuda().bfloat16(), numbers(*shape).cuda().bfloat16().requires_grad_()
    b = numbers(96, seed=2).cuda().bfloat16() if bias else None
    made = Fp8(weight, b)
    y = made(x)
    g = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, g)
    monkeypatch.setattr(fp8, "product", plain_product)
    expected = made(x)
    (expected_dx,) = torch.autograd.grad(expected, x, g)
    assert apart(y, expected) < 0.01
    assert apart(dx, expected_dx) < 0.01
    assert apart(y, F.linear(x, weight, b)) > 0.01  # it is fp8 indeed


@on_cuda
@pytest.mark.parametrize("widths", [(3072,), (768, 768, 768), (100,)])
def test_the_kernel_makes_the_same_numbers(widths):
    from inlay.kernels.fp8 import scaled_rows

    whole = numbers(37, sum(widths)).cuda().bfloat16()
    whole[3] = 0
    expected, scale = fp8._scaled(whole.cpu())
    for parts in (list(torch.split(whole, widths, 1)), [part.clone() for part in torch.split(whole, widths, 1)]):
        found, own = scaled_rows(parts)
        assert torch.equal(own.cpu(), scale)
        off = found.cpu().float() - expected.float()
        assert (off != 0).float().mean() < 0.01  # a number between two neighbours may go to either
        assert (off.abs() <= 0.125 * expected.float().abs()).all()
