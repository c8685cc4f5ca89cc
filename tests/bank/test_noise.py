"""Noise belongs to a key: the slot's own seed and step, and the name of the place."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys, generator

CPU = torch.device("cpu")


def numbers(*key: object) -> Tensor:
    return torch.rand(8, generator=generator(*key))


def uniform(keys: Keys, slot: int = 1, place: str = "gate a", n: int = 64) -> Tensor:
    return keys.uniform(slot, place, (n,), CPU)


def test_the_same_key_gives_the_same_numbers():
    assert torch.equal(numbers(3, "layers.0", 1.5), numbers(3, "layers.0", 1.5))


@pytest.mark.parametrize("other", [(4, "a"), (3, "b"), ("3", "a"), (3,), ("a", 3), (3, "a", 0), (3, "a "), ("3, 'a'",)])
def test_another_key_gives_other_numbers(other: tuple[object, ...]):
    assert not torch.equal(numbers(3, "a"), numbers(*other))


def test_generators_leave_the_global_stream_alone():
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    numbers("any")
    Keys({1: (0, 0)}).keep(1, "place", (4,), 0.5, CPU)
    assert torch.equal(torch.rand(4), expected)


def test_seed_step_and_place_each_change_a_slots_noise():
    base = uniform(Keys({1: (5, 7)}))
    assert torch.equal(base, uniform(Keys({1: (5, 7)})))
    assert not torch.equal(base, uniform(Keys({1: (6, 7)})))
    assert not torch.equal(base, uniform(Keys({1: (5, 8)})))
    assert not torch.equal(base, uniform(Keys({1: (7, 5)})))
    assert not torch.equal(base, uniform(Keys({1: (5, 7)}), place="gate b"))


def test_two_slots_differ_by_their_seeds_and_not_by_their_numbers():
    keys = Keys({1: (5, 7), 2: (6, 7), 30: (5, 7)})
    assert not torch.equal(uniform(keys, 1), uniform(keys, 2))
    assert torch.equal(uniform(keys, 1), uniform(keys, 30))  # a run does not depend on which slot it got


def test_a_slots_noise_does_not_depend_on_its_neighbours():
    alone, crowded = Keys({4: (2, 1)}), Keys({1: (0, 0), 4: (2, 1), 9: (3, 3)})
    uniform(crowded, 1)
    assert torch.equal(uniform(alone, 4), uniform(crowded, 4))
    assert torch.equal(alone.keep(4, "p", (50,), 0.5, CPU), crowded.keep(4, "p", (50,), 0.5, CPU))


def test_a_slot_without_a_key_has_no_noise():
    with pytest.raises(KeyError):
        uniform(Keys({1: (0, 0)}), slot=2)


def test_uniform_noise_is_uniform_and_inside_the_open_interval():
    u = uniform(Keys({1: (0, 0)}), n=200_000)
    assert 0 < u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    assert abs(u.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / len(u))
    assert abs(u.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / len(u))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_mask_drops_a_share_p_and_scales_the_rest(p: float):
    n = 200_000
    mask = Keys({1: (0, 0)}).keep(1, "dropout x", (n // 4, 4), p, CPU)
    assert mask.shape == (n // 4, 4)
    values = mask.unique().tolist()
    assert values == pytest.approx([0, 1 / (1 - p)])
    dropped = (mask == 0).float().mean().item()
    assert dropped == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))
    assert mask.mean().item() == pytest.approx(1, abs=5 * math.sqrt(p / (1 - p) / n))
    columns = (mask == 0).float().mean(0)  # no position is special
    assert columns.tolist() == pytest.approx([p] * 4, abs=5 * math.sqrt(p * (1 - p) / (n // 4)))


def test_the_ends_of_p_keep_all_and_nothing():
    keys = Keys({1: (0, 0)})
    assert (keys.keep(1, "x", (100,), 0.0, CPU) == 1).all()
    assert (keys.keep(1, "x", (100,), 1.0, CPU) == 0).all()


def test_mixout_by_neuron_drops_all_outgoing_weights_at_once():
    keys = Keys({1: (0, 0)})
    rows = keep_mask(keys, 1, "w", (40, 6), 0.5, "neuron", 0, CPU).expand(40, 6)
    assert set(rows.unique().tolist()) == {0.0, 2.0}
    assert (rows == rows[:, :1]).all()
    columns = keep_mask(keys, 1, "w", (6, 40), 0.5, "neuron", 1, CPU).expand(6, 40)
    assert (columns == columns[:1]).all()
    assert len(columns[0].unique()) == 2


def test_mixout_by_element_and_of_vectors_drops_single_numbers():
    keys = Keys({1: (0, 0)})
    matrix = keep_mask(keys, 1, "w", (40, 6), 0.5, "element", 0, CPU)
    assert matrix.shape == (40, 6)
    assert not (matrix == matrix[:, :1]).all()
    assert keep_mask(keys, 1, "b", (40,), 0.5, "neuron", 0, CPU).shape == (40,)


def test_mixout_equals_the_papers_formula():
    theta, start = torch.randn(20, generator=generator(1)), torch.randn(20, generator=generator(2))
    p = 0.9
    keep = Keys({1: (0, 0)}).keep(1, "x", (20,), p, CPU)
    m = (keep == 0).float()
    assert 0 < m.sum() < 20
    torch.testing.assert_close(mix(theta, start, keep), ((1 - m) * theta + m * start - p * start) / (1 - p))
