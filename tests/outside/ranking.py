"""Ranking: texts in the order in which they fit a query, as a softmax over all texts of the query (ListNet).

Data has a row per pair: the query (text), a text (pair), and how well it fits, from 0 on (label).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from inlay.base.load import Base
from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.tasks import Answer, Example, Row, Targets, Task, Unusable, as_text, equal_shares
from inlay.tasks._text import pooled, text_example, text_rows


@dataclass(frozen=True, kw_only=True)
class Ranking(Task):
    """The options of the task: none."""

    kind = "ranking"
    columns = ("text", "pair", "label")
    optional = ()
    measures = ("mrr",)
    compares_rows = True

    def subject(self, example: Example) -> tuple[str, str | None]:
        return example.text, None

    def read(self, record: Record, columns: Columns) -> Example:
        example = text_example(record, columns, None)
        if not columns.label:
            return example
        try:
            fits = float(as_text(record, columns.label))
        except ValueError:
            raise Unusable(f"the column {columns.label!r} is not a number") from None
        if not 0 <= fits < 100:
            raise Unusable(f"the column {columns.label!r} holds {fits}; expected a number from 0 to 99")
        return replace(example, target=fits)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        return ("fit",)

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        rows = text_rows(tokenizer, examples, limit, False, lambda e: e.target)
        number: dict[str, int] = {}
        return [replace(row, aux=number.setdefault(examples[row.example].text, len(number))) for row in rows]

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        queries: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            queries.setdefault(row.aux, []).append(i)
        shape = len(queries), max(map(len, queries.values()), default=0)
        at, fits = np.full(shape, -1), np.zeros(shape, dtype=np.float32)
        for number, own in enumerate(queries.values()):
            at[number, : len(own)] = own
            fits[number, : len(own)] = [rows[i].target for i in own]
        return Targets(at, fits, equal_shares(len(queries)))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        share = value / value.sum(1, keepdim=True).clamp(min=1e-6)
        return -(share * outputs[:, :, 0].log_softmax(1)).sum(1)

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        return {"fit": pooled([outputs])[0, 0].item()}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        queries: dict[str, list[tuple[float, float]]] = {}
        for example, answer in zip(examples, answers, strict=True):
            queries.setdefault(example.text, []).append((-answer["fit"], example.target))
        first = (next((i for i, (_, fits) in enumerate(sorted(own), 1) if fits), 0) for own in queries.values())
        return {"mrr": sum(1 / i if i else 0.0 for i in first) / max(1, len(queries))}
