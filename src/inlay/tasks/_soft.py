"""Soft targets: what a teacher finds likely, mixed with what the data says. For runs with a teacher (runs/teacher.py).

    target = HARD * label + (1 - HARD) * answer

It is the answer alone where there is no label, and the label alone where the teacher may not answer. Losses are linear
in their target (squared error: up to a constant), so this is the same mixture of two losses. Only classification needs
a loss of its own, for probabilities instead of a class; validation rows keep their classes. Users cannot ask for it
by name: its spec is that of classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from inlay.base.load import Base
from inlay.errors import RunError
from inlay.tasks import Answer, Row, Targets, Task, equal_shares
from inlay.tasks.classification import Classification
from inlay.tasks.multilabel import Multilabel
from inlay.tasks.regression import Regression

HARD = 0.5
"""How much the label of a row counts beside the teacher's answer."""


@dataclass(frozen=True, kw_only=True)
class SoftClassification(Classification):
    """Classification whose rows may have the probabilities of all classes as their target."""

    loss_options: ClassVar[tuple[str, ...] | None] = ()

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a row, its value [labels] the probabilities, each times the weight of its class."""
        if not isinstance(rows[0].target, list):
            return super().targets(rows, weights)
        value = np.array([row.target for row in rows], dtype=np.float32)
        if weights is None:
            return Targets(np.arange(len(rows)), value, equal_shares(len(rows)))
        value *= np.array(weights, dtype=np.float32)
        return Targets(np.arange(len(rows)), value, np.full(len(rows), 1 / value.sum(), dtype=np.float32))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy; value [units, labels] may end before outputs [units, width] do."""
        if not value.is_floating_point():
            return super().losses(outputs, value, base)
        return -(value * outputs.log_softmax(-1)[:, : value.shape[1]]).sum(-1)


def soft_task(task: Task) -> Task:
    """The task with a loss for soft targets; an error if there is none."""
    if type(task) is Classification:
        return SoftClassification(**{field.name: getattr(task, field.name) for field in fields(task)})
    if type(task) in (Multilabel, Regression):
        return task
    raise RunError(
        f"a teacher (--teacher) is for classification, multilabel and regression, not for {task.name or 'this task'}"
    )


def soft_target(task: Task, hard: Any, answer: Answer | None, labels: Sequence[str]) -> Any:
    """What a row is compared with.

    Args:
        task: what `soft_task` gave.
        hard: the row's target as the data says it; None if it has no label.
        answer: the teacher's; None if it may not answer.
    """
    if isinstance(task, Regression):
        soft = None if answer is None else [(answer["value"] - task.mean) / task.scale]
        return _mixed(None if hard is None else [hard], soft)[0]
    soft = None if answer is None else [answer["scores"][label] for label in labels]
    if isinstance(task, Classification) and hard is not None:
        hard = [float(i == hard) for i in range(len(labels))]
    return _mixed(hard, soft)


def _mixed(hard: list[float] | None, soft: list[float] | None) -> list[float]:
    if hard is None or soft is None:
        return hard or soft or []
    return [HARD * h + (1 - HARD) * s for h, s in zip(hard, soft, strict=True)]
