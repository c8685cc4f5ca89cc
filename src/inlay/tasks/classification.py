"""One of several classes, for a text or a pair of texts. Loss: cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
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
from inlay.tasks import Answer, Example, Row, Targets, as_text, in_natural_order, shares
from inlay.tasks._text import TextTask, best_temperature, column, pooled, scores, text_example
from inlay.tasks._together import disagreement, mean


@tasks.register("classification")
@dataclass(frozen=True, kw_only=True)
class Classification(TextTask):
    """The options of the task."""

    kind = "classification"
    measures = metrics.OF_TASK["classification"]
    columns = OWN["classification"].columns
    joined = OWN["classification"].joined
    loss_options: ClassVar[tuple[str, ...] | None] = ()
    encode_options = ("long",)

    temperature: float = option(1.0, "what logits are divided by; fitted on validation rows", above=0)

    def read(self, record: Record, columns: Columns) -> Example:
        """Any value is a class name."""
        target = as_text(record, columns.label).strip() if columns.label else None
        return text_example(record, columns, target)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Every class that occurs, in natural order."""
        names = in_natural_order([e.target for e in examples])
        if len(names) < 2:
            place = examples[0].place if examples else "the data"
            raise DataError(f"{place}: every row has the label {names[0] if names else None!r}; expected two classes")
        return names

    def label_names(self, example: Example) -> tuple[str, ...]:
        """The class."""
        return () if example.target is None else (example.target,)

    def target_of(self, labels: Sequence[str]) -> Callable[[Example], int]:
        """The target is the number of the class."""
        number = {label: i for i, label in enumerate(labels)}

        def target(example: Example) -> int:
            if example.target not in number:
                raise DataError(f"{example.place}: the label {example.target!r} is not one of {', '.join(labels)}")
            return number[example.target]

        return target

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a row, its value the class; with class weights it counts as much as its class."""
        classes = np.array([row.target for row in rows], dtype=np.int64)
        return Targets(np.arange(len(rows)), classes, shares(classes, weights))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(outputs, value, reduction="none")

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
        """The likeliest class, its probability, and all of them."""
        logits = pooled(outputs)
        p = (logits / column("temperature", tasks, logits)).softmax(-1)
        score, best = p.max(-1)
        label = [names[i] for names, i in zip(labels, best.tolist(), strict=True)]
        return ByColumn({"label": label, "score": score.tolist(), "scores": scores(labels, p)})

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """Means of the probabilities."""
        p_of_member = [list(answer["scores"].values()) for answer in answers]
        means = mean(p_of_member, weights)
        best = max(range(len(means)), key=means.__getitem__)
        answer = {"label": labels[best], "score": means[best], "scores": dict(zip(labels, means, strict=True))}
        return answer | {"uncertainty": disagreement(p_of_member, weights)}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """Accuracy, F1 of several kinds, Matthews."""
        return metrics.classification([e.target for e in examples], [a["label"] for a in answers], labels)

    def score_rows(self, logits: Tensor, examples: Sequence[Example], labels: Sequence[str]) -> dict[str, float]:
        """The likeliest classes are enough."""
        best = (logits.float() / self.temperature).softmax(-1).argmax(-1).tolist()
        return metrics.classification([e.target for e in examples], [labels[i] for i in best], labels)

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """One temperature that makes the held-out log-likelihood largest."""
        logits = pooled(outputs).double()
        targets = torch.tensor([r[0].target for r in rows], device=logits.device)
        temperature = best_temperature(lambda t: F.cross_entropy(logits / t, targets).item(), len(targets))
        return replace(self, temperature=temperature)

    def primary(self, asked: str | None, labels: Sequence[str]) -> str:
        """Binary F1 is only for two classes."""
        measures = [m for m in self.measures if m != "f1" or len(labels) == 2]
        return metrics.choose(measures, asked, self.name)
