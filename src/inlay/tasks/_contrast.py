"""Contrast: texts of one class become alike, those of others do not. A stage before classification, for few rows.

Supervised InfoNCE (Khosla et al. 2020) on pooled states: with z the states of a batch at length 1, and P(i) the other
rows of i's class,

    loss = mean over rows i that have others of their class of
           mean over p in P(i) of  -log( exp(z_i . z_p / T) / sum over a != i of exp(z_i . z_a / T) )

Users cannot ask for it by name: it has the rows of classification, and its outputs (head `states`) are no answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.base.load import Base
from inlay.config import option
from inlay.tasks import NOTHING, Row, Targets
from inlay.tasks.classification import Classification


@dataclass(frozen=True, kw_only=True)
class Contrast(Classification):
    """The options of the task."""

    gives_answers = False
    compares_rows = True
    head = "states"
    loss_options: ClassVar[tuple[str, ...] | None] = ("sharpness",)

    sharpness: float = option(0.1, "T, what similarities are divided by", above=0)

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """One unit, the whole batch; its value is the class of every row, counted from 1."""
        classes = np.array([[1 + row.target for row in rows]], np.int64)
        return Targets(np.arange(len(rows))[None], classes, np.ones(1, np.float32))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """InfoNCE; value [units, k] is 0 where there is no row, and may end before outputs [units, k, d] do."""
        k = outputs.shape[1]
        classes = F.pad(value, (0, k - value.shape[1]))
        z = F.normalize(outputs.masked_fill(outputs <= NOTHING, 0.0), dim=-1)
        others = ~torch.eye(k, dtype=torch.bool, device=outputs.device) & (classes > 0).unsqueeze(1)
        alike = (z @ z.transpose(1, 2) / self.sharpness).masked_fill(~others, NOTHING)
        same = others & (classes.unsqueeze(2) == classes.unsqueeze(1))
        count = same.sum(2)
        loss_of_row = -(alike.log_softmax(2).masked_fill(~same, 0.0).sum(2) / count.clamp(min=1))
        return loss_of_row.sum(1) / (count > 0).sum(1).clamp(min=1)
