"""A number for a text or a pair. Loss: squared error of the standardised target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.config import option
from inlay.data.by_column import ByColumn
from inlay.data.columns import OWN, Columns
from inlay.data.record import Record
from inlay.errors import DataError
from inlay.registry import tasks
from inlay.tasks import Answer, Example, Row, Targets, Unusable, as_text, equal_shares
from inlay.tasks._text import TextTask, pooled, text_example
from inlay.tasks._together import deviation
from inlay.tasks._together import mean as weighted_mean


@tasks.register("regression")
@dataclass(frozen=True, kw_only=True)
class Regression(TextTask):
    """The options of the task."""

    kind = "regression"
    measures = metrics.OF_TASK["regression"]
    columns = OWN["regression"].columns
    joined = OWN["regression"].joined
    loss_options = ()
    encode_options = ("long", "mean", "scale")

    mean: float = option(0.0, "the mean of the training targets; the head predicts the standardised value")
    scale: float = option(1.0, "their standard deviation", above=0)

    def fit(self, examples: Sequence[Example]) -> Self:
        """Mean and deviation of the targets."""
        targets = [e.target for e in examples]
        if len(set(targets)) < 2:
            raise DataError(f"{examples[0].place if examples else 'the data'}: every row has the same target value")
        scale = float(f"{pstdev(targets):.6g}")
        digits = 6 - math.floor(math.log10(scale))  # of the deviation: dates in seconds are large and close together
        return replace(self, mean=round(fmean(targets), digits), scale=scale)

    def read(self, record: Record, columns: Columns) -> Example:
        """The label must be a finite number."""
        return text_example(record, columns, _number(record, columns.label) if columns.label else None)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """One output."""
        return ("value",)

    def target_of(self, labels: Sequence[str]) -> Callable[[Example], float]:
        """The target is standardised."""
        return lambda example: (example.target - self.mean) / self.scale

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a row, its value the standardised target."""
        value = np.array([row.target for row in rows], dtype=np.float32)
        return Targets(np.arange(len(rows)), value, equal_shares(len(rows)))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Squared error."""
        return F.mse_loss(outputs[:, 0], value, reduction="none")

    @classmethod
    def mixed_answers(
        cls,
        tasks: Sequence[Self],
        outputs: Sequence[Sequence[Tensor]],
        rows: Sequence[Sequence[Row]],
        examples: Sequence[Example],
        labels: Sequence[Sequence[str]],
        base: Base,
    ) -> Sequence[Answer]:
        """The value on the scale of the data."""
        values = zip(pooled(outputs)[:, 0].tolist(), tasks, strict=True)
        return ByColumn({"value": [value * task.scale + task.mean for value, task in values]})

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """The mean; uncertain by the standard deviation, in units of the data."""
        values = [answer["value"] for answer in answers]
        (value,) = weighted_mean([[value] for value in values], weights)
        return {"value": value, "uncertainty": deviation(values, weights)}

    def score_rows(self, logits: Tensor, examples: Sequence[Example], labels: Sequence[str]) -> dict[str, float]:
        """The values are enough."""
        values = [value * self.scale + self.mean for value in logits.float()[:, 0].tolist()]
        return metrics.regression([e.target for e in examples], values)

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """Spearman, Pearson and errors."""
        return metrics.regression([e.target for e in examples], [a["value"] for a in answers])


def _number(record: Record, column: str) -> float:
    text = as_text(record, column)
    try:
        value = float(text)
    except ValueError:
        raise Unusable(f"the column {column!r} holds {text[:40]!r}; expected a number") from None
    if not math.isfinite(value):
        raise Unusable(f"the column {column!r} holds {text!r}; expected a finite number")
    return value
