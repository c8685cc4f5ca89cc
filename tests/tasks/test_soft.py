"""Soft targets: half a label and half an answer, and a loss for probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from inlay.errors import RunError
from inlay.tasks import Row, parse
from inlay.tasks._soft import HARD, soft_target, soft_task
from inlay.training.loss import RunTargets, loss_per_run, plan_losses


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.25]])
def test_the_soft_loss_is_that_of_a_plain_one(weights):
    task = soft_task(parse("classification:temperature=2"))
    logits, p = torch.randn(5, 3), torch.rand(5, 3).softmax(-1)
    rows = [Row([1], target=own.tolist()) for own in p]
    loss = task.loss(list(logits), rows, None, weights)
    each = torch.ones(3) if weights is None else torch.tensor(weights)
    plain = -(p * each * logits.log_softmax(-1)).sum() / (p * each).sum()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    hard = [Row([1], target=i % 3) for i in range(5)]
    certain = [Row([1], target=[float(i % 3 == k) for k in range(3)]) for i in range(5)]
    expected = F.cross_entropy(logits, torch.arange(5) % 3, None if weights is None else each)
    for same in (hard, certain):
        assert task.loss(list(logits), same, None, weights).item() == pytest.approx(expected.item(), rel=1e-6)
    assert task.spec == "classification:temperature=2"
    assert task.loss_key != parse("classification").loss_key


def test_a_target_is_half_label_and_half_answer():
    task = soft_task(parse("classification"))
    said = {"scores": {"a": 0.2, "b": 0.8}}
    assert soft_target(task, 0, said, ("a", "b")) == pytest.approx([HARD + (1 - HARD) * 0.2, (1 - HARD) * 0.8])
    assert soft_target(task, None, said, ("a", "b")) == [0.2, 0.8]
    assert soft_target(task, 1, None, ("a", "b")) == [0.0, 1.0]
    many = soft_task(parse("multilabel"))
    assert soft_target(many, [1.0, 0.0], said, ("a", "b")) == pytest.approx([HARD + (1 - HARD) * 0.2, (1 - HARD) * 0.8])
    number = soft_task(parse("regression:mean=10,scale=2"))
    assert soft_target(number, 1.0, {"value": 16.0}, ("value",)) == HARD * 1.0 + (1 - HARD) * 3.0
    assert soft_target(number, None, {"value": 16.0}, ("value",)) == 3.0
    for spec in ("tagging", "qa", "mlm"):
        with pytest.raises(RunError, match="for classification, multilabel and regression, not for " + spec):
            soft_task(parse(spec))


def test_losses_of_runs_with_and_without_a_teacher_are_apart():
    """Wide heads beside narrow ones, and in a batch with room."""
    soft, plain = soft_task(parse("classification")), parse("classification")
    given = [
        (soft, 2, [Row([1], target=[0.25, 0.75]), Row([1], target=[1.0, 0.0])]),
        (plain, 2, [Row([1], target=1)]),
        (soft, 4, [Row([1], target=[0.1, 0.2, 0.3, 0.4])]),
    ]
    logits = torch.randn(4, 4)
    firsts = np.cumsum([0, *(len(rows) for _, _, rows in given)])
    runs = [
        RunTargets(task, 0, wide, int(first), task.targets(rows))
        for (task, wide, rows), first in zip(given, firsts, strict=False)
    ]
    alone = [
        task.loss(list(logits[first : first + len(rows), :wide]), rows, None).item()
        for (task, wide, rows), first in zip(given, firsts, strict=False)
    ]

    class Output:
        group, per_token, start, values = 0, False, 0, logits

    class Base:
        device = torch.device("cpu")

    for roomy in (False, True):
        plans = plan_losses(runs, roomy)
        assert len(plans) == 2
        on_device = [
            replace(p, **{k: torch.from_numpy(getattr(p, k)) for k in ("at", "value", "weight", "run", "labels")})
            for p in plans
        ]
        found = loss_per_run(on_device, [Output()], 3, Base())
        assert found.tolist() == pytest.approx(alone, rel=1e-5)
