"""Any number of labels for a text or a pair. Loss: binary cross-entropy, the mean over labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.config import option
from inlay.data.by_column import ByColumn
from inlay.data.columns import OWN, Columns
from inlay.data.record import Record, as_flag, several
from inlay.errors import DataError
from inlay.registry import tasks
from inlay.tasks import Answer, Example, Row, Targets, Unusable, in_natural_order, needed
from inlay.tasks._text import TextTask, best_temperature, column, pooled, scores, text_example
from inlay.tasks._together import disagreement, mean


@tasks.register("multilabel")
@dataclass(frozen=True, kw_only=True)
class Multilabel(TextTask):
    """The options of the task."""

    kind = "multilabel"
    measures = metrics.OF_TASK["multilabel"]
    columns = OWN["multilabel"].columns
    joined = OWN["multilabel"].joined
    loss_options = ()
    encode_options = ("long",)

    cutoff: float = option(0.5, "give a label if its probability is at least this")
    temperature: float = option(1.0, "what logits are divided by; fitted on validation rows", above=0)

    def read(self, record: Record, columns: Columns) -> Example:
        """A list, or text with | ; or , between labels, where nothing means no label; or columns of 0 and 1."""
        names = several(columns.label, record.fields)
        if len(names) > 1:
            return text_example(record, columns, tuple(name for name in names if _flag(record, name)))
        return text_example(record, columns, _labels(record.fields.get(columns.label)) if columns.label else None)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Every label that occurs."""
        names = in_natural_order([label for e in examples for label in e.target])
        if not names:
            raise DataError(f"{examples[0].place if examples else 'the data'}: no row has any label")
        return names

    def label_names(self, example: Example) -> tuple[str, ...]:
        """All labels."""
        return tuple(example.target or ())

    def target_of(self, labels: Sequence[str]) -> Callable[[Example], list[float]]:
        """The target is 0 or 1 for every label."""

        def target(example: Example) -> list[float]:
            unknown = set(example.target) - set(labels)
            if unknown:
                raise DataError(f"{example.place}: the label {min(unknown)!r} is not one of {', '.join(labels)}")
            return [float(label in example.target) for label in labels]

        return target

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a row, its value [labels, 2]: for each label whether it is given, and how much it counts."""
        truth = np.array([row.target for row in rows], dtype=np.float32)
        value = np.ones((*truth.shape, 2), dtype=np.float32)
        value[..., 0] = truth
        if weights is not None:
            value[..., 1] = weights
        return Targets(np.arange(len(rows)), value, np.full(len(rows), 1 / max(1, truth.size), dtype=np.float32))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Binary cross-entropy, the sum over labels: one beyond a run's own counts 0."""
        truth, counts = value.unbind(-1)
        logits = outputs[:, : truth.shape[1]]
        return F.binary_cross_entropy_with_logits(logits, truth, counts, reduction="none").sum(-1)

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
        """Every label from the cut-off on; the score is that of the least certain of all decisions."""
        logits = pooled(outputs)
        p = (logits / column("temperature", tasks, logits)).sigmoid()
        decided = [_decided(*args) for args in zip(p.tolist(), labels, [task.cutoff for task in tasks], strict=True)]
        label, score = zip(*decided, strict=True)
        return ByColumn({"label": label, "score": score, "scores": scores(labels, p)})

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """Means of the probabilities; uncertain by the mean over labels."""
        p_of_member = [list(answer["scores"].values()) for answer in answers]
        disagreements = [disagreement([(p, 1 - p) for p in label], weights) for label in zip(*p_of_member, strict=True)]
        p = mean(p_of_member, weights)
        label, score = _decided(p, labels, self.cutoff)
        scores = dict(zip(labels, p, strict=True))
        return {"label": label, "score": score, "scores": scores, "uncertainty": fmean(disagreements)}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """F1 over labels, and how often the whole set is right."""
        return metrics.multilabel([e.target for e in examples], [a["label"] for a in answers], labels)

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """One temperature for all labels."""
        logits = pooled(outputs).double()
        targets = torch.tensor([r[0].target for r in rows], device=logits.device, dtype=logits.dtype)

        def loss(t: float) -> float:
            return F.binary_cross_entropy_with_logits(logits / t, targets).item()

        return replace(self, temperature=best_temperature(loss, targets.numel()))


def _decided(p: Sequence[float], labels: Sequence[str], cutoff: float) -> tuple[list[str], float]:
    """The labels from the cut-off on, and how certain the least certain decision is. Ignores `p` beyond `labels`."""
    p = p[: len(labels)]
    given = [label for label, chance in zip(labels, p, strict=True) if chance >= cutoff]
    return given, min([chance if chance >= cutoff else 1 - chance for chance in p])


def _flag(record: Record, column: str) -> bool:
    value = needed(record, column)
    flag = as_flag(value)
    if flag is None:
        raise Unusable(f"the column {column!r} holds {str(value)[:40]!r}; expected 0 or 1")
    return flag


def _labels(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        parts = re.split(r"[|;,]", value)
        return tuple(dict.fromkeys(p.strip() for p in parts if p.strip()))
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(name for v in value if v is not None and (name := str(v).strip())))
    raise Unusable(f"labels are a list, or text with | between them, not {value!r}")
