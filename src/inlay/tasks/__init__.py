"""The contract of a task: from a record to token ids, from logits to a loss, an answer and a score.

    record -> read -> Example -> encode -> Row (one, or one per window)
    rows + logits -> loss          while training
    rows + logits -> decode -> an answer, a dictionary -> score

A task is a set of options (a frozen dataclass), and its spec holds everything that answering needs, learned numbers
such as the temperature included: `classification:temperature=1.31`. It travels in the adapter's card.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from inlay import config, metrics
from inlay.config import option
from inlay.errors import SpecError
from inlay.registry import tasks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from inlay.base.load import Base
    from inlay.data.columns import Columns
    from inlay.data.record import Record

Answer = dict[str, Any]
"""What a task says about one example: label, score, scores; or value, spans, answer ..."""


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to learn from or to answer."""

    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    """Given instead of a text where every word gets an answer."""
    target: Any = None
    """What is right, as the data says it; None when nobody knows."""
    id: str = ""
    place: str = ""

    def shown(self) -> str:
        """The text, for people."""
        return self.text if not self.words else " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one example, or of one window of it."""

    ids: Sequence[int]
    types: Sequence[int] | None = None
    target: Any = None
    """What the loss compares with; its form is the task's own."""
    example: int = 0
    aux: Any = None
    """What decoding needs to find its way back: word or character positions."""


class Unusable(Exception):  # noqa: N818 - it never leaves the reader
    """A record that a task cannot use; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """The options and duties of every task."""

    name: ClassVar[str] = ""
    kind: ClassVar[str]
    """The task of this package whose data it has, its own name here: a task from outside derives from one of them."""
    measures: ClassVar[tuple[str, ...]]
    """Its metrics; the first decides."""
    per_token: ClassVar[bool] = False
    """Whether every token gets an answer; if not, rows are pooled."""
    head: ClassVar[str | None] = None
    """A head that no other can replace."""

    max_length: int | None = option(None, "longest row in tokens; auto is what the base takes, at most 512")

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 4:
            raise SpecError(f"{self.name}: max_length={self.max_length} is not valid: expected at least 4")

    @property
    def spec(self) -> str:
        """The shortest text that gives this task again."""
        return config.canonical(self.name, self)

    def fit(self, examples: Sequence[Example]) -> Self:
        """Settle options that follow from the training data."""
        return self

    @abstractmethod
    def read(self, record: Record, columns: Columns) -> Example:
        """Make an example; raises Unusable. Without a label column the target is None."""

    @abstractmethod
    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """The names of the head's outputs, in order."""

    @abstractmethod
    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """Rows of at most `limit` tokens; `Row.example` is the index of the example."""

    def label_names(self, example: Example) -> tuple[str, ...]:
        """The names in an example's target; none where a target is something else: a number, an answer."""
        return ()

    def draw(self, rows: Sequence[Row], tokenizer: Any, random: torch.Generator) -> list[Row]:
        """What a training step or an evaluation sees of these rows; a place for noise in the input."""
        return list(rows)

    @abstractmethod
    def loss(self, outputs: Sequence[Tensor], rows: Sequence[Row], base: Base, weights: Tensor | None = None) -> Tensor:
        """The mean loss of these rows.

        Args:
            outputs: one tensor per row, [labels] or [tokens, labels].
            weights: [labels] how much each class counts.
        """

    @abstractmethod
    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """The answer for one example from all its rows."""

    @abstractmethod
    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """All metrics."""

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """The task with a temperature that fits these logits (per example, of rows held out), if it has one."""
        return self

    def raw(self) -> Self:
        """The task without calibration."""
        changes: Any = {"temperature": 1.0} if hasattr(self, "temperature") else {}
        return replace(self, **changes)

    def primary(self, asked: str | None, labels: Sequence[str]) -> str:
        """The metric that decides: the one asked for, if there is one, else the first."""
        return metrics.choose(self.measures, asked, self.name)


def parse(spec: str | Task) -> Task:
    """Read a task's spec; a task object passes through."""
    if isinstance(spec, Task):
        return spec
    if not isinstance(spec, str):
        raise SpecError(f"a task is a spec such as 'classification', not {spec!r}")
    name, options = config.split_spec(spec)
    task: Task = config.build(tasks.find(name), name, options)
    return task


def needed(record: Record, column: str) -> Any:
    """A value that must be there."""
    value = record.fields.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise Unusable(f"the column {column!r} is empty")
    return value


def as_text(record: Record, column: str) -> str:
    """A value as text."""
    value = needed(record, column)
    if isinstance(value, Mapping | list | tuple):
        raise Unusable(f"the column {column!r} holds a {type(value).__name__}, not text")
    return str(value)


def in_natural_order(names: Sequence[str]) -> tuple[str, ...]:
    """Sorted; numbers by their value, so that 2 comes before 10."""

    def key(name: str) -> tuple[int, float, str]:
        try:
            number = float(name)
        except ValueError:
            number = math.nan
        return (0, number, name) if math.isfinite(number) else (1, 0.0, name)  # "nan" is a word, and has no order

    return tuple(sorted(set(names), key=key))
