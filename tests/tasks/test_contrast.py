"""The contrastive loss, against one written row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import tiny
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from inlay.bank.noise import generator
from inlay.bank.records import on_device
from inlay.engine.outputs import Output
from inlay.registry import tasks
from inlay.runs.prepare import Split
from inlay.tasks import NOTHING, Row, at_units
from inlay.tasks._contrast import Contrast
from inlay.training.job import Stage
from inlay.training.loss import RunTargets, loss_per_run, plan_losses

BASE = tiny.text_host().base
CLASSES = ([0, 1, 0, 1, 1, 2], [0, 0, 0], [1, 0, 2, 1], [3, 3])


def rows(classes: Sequence[int]) -> list[Row]:
    return [Row([0] * 3, target=one) for one in classes]


def states(n: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 16, generator=random).to(tiny.DEVICE).requires_grad_()


def oracle(h: Tensor, classes: Sequence[int], temperature: float) -> Tensor:
    """Khosla et al. 2020, equation 2, as it is written."""
    z = h / h.norm(dim=1, keepdim=True)
    found = []
    for i, own in enumerate(classes):
        others = [a for a in range(len(classes)) if a != i]
        alike = [p for p in others if classes[p] == own]
        if alike:
            below = sum((torch.exp(z[i] @ z[a] / temperature) for a in others), torch.zeros((), device=h.device))
            each = [torch.log(torch.exp(z[i] @ z[p] / temperature) / below) for p in alike]
            found.append(-torch.stack(each).mean())
    return torch.stack(found).mean()


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("classes", CLASSES)
def test_loss_and_gradient_are_those_of_the_formula(classes, temperature):
    h = states(len(classes), 1)
    expected = oracle(h, classes, temperature)
    (slope,) = torch.autograd.grad(expected, h)
    found = Contrast(sharpness=temperature).loss(list(h), rows(classes), BASE)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.autograd.grad(found, h)[0], slope, atol=1e-5, rtol=1e-4)
    other = oracle(h, [*classes[1:], classes[0]], temperature)  # the control
    assert len(set(classes)) == 1 or not torch.allclose(other, expected)


def test_rows_without_another_of_their_class_are_only_others():
    h = states(3, 2)
    assert Contrast().loss(list(h), rows([0, 1, 2]), BASE) == 0
    with_pair = Contrast().loss(list(h), rows([0, 0, 2]), BASE).item()
    assert math.isfinite(with_pair)
    assert with_pair > 0


@pytest.mark.parametrize("roomy", [False, True])
def test_runs_in_one_call_are_as_each_alone(roomy):
    """Also with the room that recordings have, where value ends before outputs do."""
    all_states = [states(len(classes), seed) for seed, classes in enumerate(CLASSES)]
    task, firsts = Contrast(), [sum(map(len, CLASSES[:i])) for i in range(len(CLASSES))]
    runs = [
        RunTargets(task, 7, 16, first, task.targets(rows(classes)))
        for first, classes in zip(firsts, CLASSES, strict=True)
    ]
    plans = on_device(plan_losses(runs, roomy), BASE.device)
    assert len(plans) == 1
    outputs = [Output(torch.cat(all_states), 0, 7, False)]
    found = loss_per_run(plans, outputs, len(CLASSES), BASE)
    expected = [oracle(h, classes, 0.1) for h, classes in zip(all_states, CLASSES, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-4)
    slopes = torch.autograd.grad(found.sum(), all_states)
    torch.testing.assert_close(slopes, torch.autograd.grad(sum(expected), all_states), atol=1e-5, rtol=1e-4)


def test_what_is_not_there_counts_nothing_and_gets_no_gradient():
    at = torch.tensor([[0, 1, 2, -1, -1], [-1] * 5])
    leaf = at_units(states(3, 3), at.to(tiny.DEVICE)).detach().requires_grad_()
    losses = Contrast().losses(leaf, torch.tensor([[1, 1, 2], [0, 0, 0]], device=tiny.DEVICE), BASE)
    assert torch.isfinite(losses).all()
    losses.sum().backward()
    assert not leaf.grad[leaf <= NOTHING].any()
    assert leaf.grad[leaf > NOTHING].any()


def test_no_shape_depends_on_data():
    with FakeTensorMode():
        outputs, value = torch.empty(4, 16, 16), torch.empty(4, 6, dtype=torch.int64)
        assert Contrast().losses(outputs, value, BASE).shape == (4,)


def test_nobody_can_ask_for_it_by_name():
    assert "contrast" not in tasks.names()
    assert tasks.find("classification") is not Contrast


# --- batches ------------------------------------------------------------------------------------------------------


def stage(classes: Sequence[int]) -> Stage:
    numbers: dict[int, list[int]] = {}
    for i, one in enumerate(classes):
        numbers.setdefault(one, []).append(i)
    part = Split([], rows(classes))
    return Stage("contrast", Contrast(), ("a",), part.rows, (), (), "accuracy", 0, 9, None, None, numbers)


@pytest.mark.parametrize(
    "classes", [[i % 7 for i in range(40)], [i % 2 for i in range(9)], [0, 0, 1], list(range(5)) * 3]
)
@pytest.mark.parametrize("size", [2, 4, 16])
def test_every_row_comes_once_a_pass_with_another_of_its_class(classes, size):
    one = stage(classes)
    for epoch in range(3):
        batches = one.batches(size, generator(3, "order", 0, epoch))
        assert len(batches) == one.steps_per_epoch(size)
        assert sorted(i for batch in batches for i in batch) == list(range(len(classes)))
        for batch in batches:
            own = [classes[i] for i in batch]
            assert all(own.count(c) > 1 or classes.count(c) == 1 for c in own)


def test_pairs_are_others_in_every_pass_and_the_same_for_a_seed():
    one = stage([0] * 12)
    first, again, second = (one.batches(2, generator(seed, "order", 0, 0)) for seed in (1, 1, 2))
    assert first == again != second
