"""Hard-concrete gates: the closed form against samples, the range, the gradient, bad numbers."""

from __future__ import annotations

import math

import pytest
import torch

from inlay.bank.gates import HardConcrete
from inlay.bank.noise import generator
from inlay.errors import SpecError

GATES = [HardConcrete(), HardConcrete(-0.1, 1.1, 2 / 3), HardConcrete(-0.3, 2.0, 1.7), HardConcrete(-2.0, 1.05, 0.3)]
N = 200_000


def draw(n: int) -> torch.Tensor:
    return torch.rand(n, generator=generator("gates"), dtype=torch.float64).clamp(1e-12, 1 - 1e-12)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("log_a", [-3.0, -0.5, 0.0, 1.0, 4.0])
def test_expected_l0_is_the_share_of_samples_that_are_not_zero(gate: HardConcrete, log_a: float):
    expected = gate.expected_l0(torch.tensor(log_a, dtype=torch.float64)).item()
    found = (gate.sample(torch.full((N,), log_a, dtype=torch.float64), draw(N)) > 0).double().mean().item()
    assert 0 < expected < 1
    assert found == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / N))


@pytest.mark.parametrize("gate", GATES)
def test_the_noise_is_logistic(gate: HardConcrete):
    """P(z < 1) is the other end of the same distribution."""
    log_a = torch.tensor(0.5, dtype=torch.float64)
    edge = (1 - gate.low) / (gate.high - gate.low)
    expected = torch.sigmoid(gate.temperature * torch.tensor(edge).logit() - log_a).item()
    found = (gate.sample(log_a.expand(N), draw(N)) < 1).double().mean().item()
    assert found == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / N))


@pytest.mark.parametrize("gate", GATES)
def test_gates_lie_between_zero_and_one_and_reach_both(gate: HardConcrete):
    sampled = gate.sample(torch.zeros(N, dtype=torch.float64), draw(N))
    settled = gate.settled(torch.linspace(-12, 12, 200))
    for z in (sampled, settled):
        assert z.min() == 0
        assert z.max() == 1
        assert ((z > 0) & (z < 1)).any()
    assert (settled.diff() >= 0).all()


def test_a_settled_gate_is_the_middle_of_the_distribution():
    gate, log_a = HardConcrete(-0.1, 1.1), torch.tensor([-1.0, 0.0, 0.7])
    middle = gate.sample(log_a, torch.full((3,), 0.5))
    torch.testing.assert_close(gate.settled(log_a), middle)  # at temperature 1
    torch.testing.assert_close(gate.settled(log_a), torch.sigmoid(log_a) * 1.2 - 0.1)


def test_the_extremes_of_the_noise_stay_finite():
    z = HardConcrete().sample(torch.tensor([0.0, 0.0]), torch.tensor([1e-6, 1 - 1e-6]))
    assert z.tolist() == [0, 1]


@pytest.mark.parametrize("gate", GATES)
def test_the_gradient_flows_where_a_gate_is_between_its_ends(gate: HardConcrete):
    log_a = torch.zeros(1000, dtype=torch.float64, requires_grad=True)
    z = gate.sample(log_a, draw(1000))
    (grad,) = torch.autograd.grad(z.sum(), log_a)
    inside = (z > 0) & (z < 1)
    assert inside.any()
    assert not inside.all()
    assert (grad[inside] > 0).all()
    assert not grad[~inside].any()


@pytest.mark.parametrize("gate", GATES)
def test_gradients_equal_finite_differences(gate: HardConcrete):
    log_a = torch.tensor([-0.6, 0.1, 0.4], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: gate.sample(t, u), (log_a,))
    assert torch.autograd.gradcheck(gate.settled, (log_a,))
    assert torch.autograd.gradcheck(gate.expected_l0, (log_a,))
    (grad,) = torch.autograd.grad(gate.expected_l0(log_a).sum(), log_a)
    assert (grad > 0).all()


@pytest.mark.parametrize("low", [0.0, 0.1, math.nan, -math.inf])
def test_a_gate_without_a_finite_lower_end_below_zero_is_refused(low: float):
    with pytest.raises(SpecError, match="low < 0"):
        HardConcrete(low=low)


@pytest.mark.parametrize("high", [1.0, 0.5, math.nan, math.inf])
def test_a_gate_without_a_finite_upper_end_above_one_is_refused(high: float):
    with pytest.raises(SpecError, match="high > 1"):
        HardConcrete(high=high)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_gate_without_a_finite_temperature_above_zero_is_refused(temperature: float):
    with pytest.raises(SpecError, match="temperature > 0"):
        HardConcrete(temperature=temperature)
