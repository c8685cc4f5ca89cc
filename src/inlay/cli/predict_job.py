"""From the rows of an input to answers, part by part, and how an answer is laid out in a file.

In a file, the columns that are kept from the input stand beside the answer's own. If both have the same name, the
input's becomes `input_NAME`. A table has a column for the score of every label instead of `scores`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inlay.data.by_column import ByColumn
from inlay.data.record import Skipped

if TYPE_CHECKING:
    from inlay.cli.named_adapters import NamedAdapter
    from inlay.cli.predict_input import InputRow, InputRows
    from inlay.tasks import Answer, Example

ANSWERS: Mapping[str, Sequence[str]] = {
    "classification": ("label", "score", "scores"),
    "multilabel": ("label", "score", "scores"),
    "regression": ("value",),
    "tagging": ("tokens", "tags", "spans"),
    "qa": ("context", "answer", "start", "end", "score"),
}
"""Task -> what its answers hold."""
_QUESTION = ("task", "text", "pair", "context")
_UNCERTAINTY = "uncertainty"
_RESULT = ("label", "score", "scores", "spans", "answer", "start", "end", "value", _UNCERTAINTY)
_TYPES = {"score": "float64", "value": "float64", "start": "int64", "end": "int64", _UNCERTAINTY: "float64"}
"""Columns of a table that hold no text."""
_ERROR = "error"
_INPUT = "input"


@dataclass
class PredictJob:
    """A command's rows, and how many were answered or bad so far."""

    texts: InputRows
    chosen: Mapping[str, NamedAdapter]
    size: int
    """Rows of a part."""
    skip: bool
    """Leave out rows that an adapter cannot use; otherwise they get an `error`."""
    bad: Skipped = field(default_factory=Skipped)
    answered: int = 0
    """Rows that at least one adapter could use."""

    def parts(self) -> Iterator[list[InputRow]]:
        """The rows to answer, part by part."""
        rows = self.texts.rows({name: adapter.task() for name, adapter in self.chosen.items()})
        while chunk := list(itertools.islice(rows, self.size)):
            bad = [row for row in chunk if row.problems]
            for row in bad:
                self.bad(row.place, next(iter(row.problems.values())))
            kept = [row for row in chunk if not row.problems] if self.skip and bad else chunk
            self.answered += len(kept) - [row.examples for row in kept].count({})
            yield kept

    def requests(self, rows: Sequence[InputRow]) -> list[tuple[str, Example]]:
        """These rows, for every adapter that can use them."""
        return [(name, example) for row in rows for name, example in row.examples.items()]

    def every(self, rows: Sequence[InputRow], answers: Sequence[Answer]) -> Sequence[Answer]:
        """Every adapter's answer to every row; an `error` where it cannot use the row."""
        if not [row for row in rows if row.problems]:
            return answers
        remaining = iter(answers)
        return [next(remaining) if name in row.examples else _failed(row, name) for row in rows for name in self.chosen]

    def documents(self, rows: Sequence[InputRow], answers: Sequence[Answer]) -> list[Answer]:
        """The answers of the JSON document, with the kept columns under `input`."""
        pairs, kept = zip(self._rows(rows), answers, strict=True), self.texts.kept
        return [
            {**answer, _INPUT: {name: row.fields.get(name) for name in kept}} if kept and row.fields else answer
            for row, answer in pairs
        ]

    def lines(self, rows: Sequence[InputRow], answers: Sequence[Answer], table: bool) -> Sequence[Answer]:
        """The answers of a file; by column if they come by column."""
        kept = {new: [row.fields.get(name) for row in self._rows(rows)] for name, new in self._kept.items()}
        if isinstance(answers, ByColumn) and not (table and isinstance(answers.columns.get("scores"), list)):
            return ByColumn(_line(answers.columns, kept, table))
        of_rows = ByColumn(kept) if kept else [{}] * len(answers)
        return [_line(answer, fields, table) for answer, fields in zip(answers, of_rows, strict=True)]

    def _rows(self, rows: Sequence[InputRow]) -> Sequence[InputRow]:
        """The row of every answer."""
        return rows if len(self.chosen) == 1 else [row for row in rows for _ in self.chosen]

    def columns(self) -> dict[str, str]:
        """The columns of a table, with their types."""
        needed = self._ours
        question = [name for name in _QUESTION if name in needed]
        result = [name for name in _RESULT if name in needed and name != "scores"]
        names = [*question, *self._kept.values(), *result, *self._scores, _ERROR]
        types = {**_TYPES, **dict.fromkeys(self._scores, "float64"), **dict.fromkeys(self._kept.values(), "string")}
        return {name: types.get(name, "string") for name in names}

    @cached_property
    def _scores(self) -> list[str]:
        scored = (adapter for adapter in self.chosen.values() if "scores" in ANSWERS.get(adapter.kind, ()))
        return list(dict.fromkeys(_score(label) for adapter in scored for label in adapter.labels))

    @cached_property
    def _ours(self) -> set[str]:
        names = {name for adapter in self.chosen.values() for name in ANSWERS.get(adapter.kind, ())}
        names |= {_UNCERTAINTY} if any(adapter.about.get("members") for adapter in self.chosen.values()) else set()
        return {"task", "text", _ERROR, *(["pair"] if self.texts.paired else []), *names, *self._scores}

    @cached_property
    def _kept(self) -> dict[str, str]:
        """Kept column of the input -> its name beside the answer's own."""
        new_names: dict[str, str] = {}
        for name in self.texts.kept:
            if name in self.texts.shown:
                continue
            new = name
            while new in self._ours or (new != name and new in self.texts.kept):
                new = f"{_INPUT}_{new}"
            new_names[name] = new
        return new_names


def _line(answer: Mapping[str, Any], kept: Mapping[str, Any], table: bool) -> dict[str, Any]:
    """The question, the kept columns and the answer: of one row, or the columns of all."""
    line: dict[str, Any] = {**{key: answer[key] for key in _QUESTION if key in answer}, **kept, **answer}
    if table and (scores := line.pop("scores", None)) is not None:
        score_of_label = scores.columns if isinstance(scores, ByColumn) else scores
        line |= {_score(label): score for label, score in score_of_label.items()}
    return line


def _score(label: str) -> str:
    return f"score_{label}"


def _failed(row: InputRow, name: str) -> Answer:
    return {"task": name, "text": row.text, _ERROR: row.problems[name]}
