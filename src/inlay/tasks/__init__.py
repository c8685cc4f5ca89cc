"""The contract of a task: from a record to token ids, from logits to a loss, an answer and a score.

    record -> read -> Example -> encode -> Row (one, or one per window)
    rows -> targets, logits + targets -> losses          while training
    rows + logits -> decode -> an answer, a dictionary -> score

A task is a set of options (a frozen dataclass), and its spec holds everything that answering needs, learned numbers
such as the temperature included: `classification:temperature=1.31`. It travels in the adapter's card.

A loss never sees rows: `targets` makes arrays of them on the host, and `losses` computes with tensors alone, of many
runs in one call and inside a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from inlay import config, metrics
from inlay.config import option
from inlay.data.batch import Array
from inlay.errors import SpecError
from inlay.registry import tasks
from inlay.tasks._outputs import RowOutputs as RowOutputs
from inlay.tasks._reading import Unusable as Unusable
from inlay.tasks._reading import as_text as as_text
from inlay.tasks._reading import is_blank as is_blank
from inlay.tasks._reading import needed as needed

if TYPE_CHECKING:
    from inlay.base.load import Base
    from inlay.data.batch import Batch
    from inlay.data.columns import Columns
    from inlay.data.record import Record

Answer = dict[str, Any]
"""A task's answer to one example: label, score, scores; or value, spans, answer ..."""

NOTHING = -1e4
"""Stands where a unit has no output, and in columns beyond an adapter's labels: exp makes it exactly 0."""


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to learn from or to answer."""

    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    """Given instead of a text if every word gets an answer."""
    target: Any = None
    """The right answer, as the data has it; None if unknown."""
    id: str = ""
    place: str = ""

    def shown(self) -> str:
        """The text, for people."""
        return self.text if not self.words else " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one example, or of one window of it."""

    ids: Sequence[int]
    """A list, or a window (a memoryview) on the ids of many rows."""
    types: Sequence[int] | None = None
    """Token types; None if all are 0, or the model has none."""
    target: Any = None
    """What the loss compares with; its form depends on the task."""
    example: int = 0
    aux: Any = None
    """What decoding needs besides: word or character positions."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What a loss compares with. A unit is what is right or wrong by itself: a row, a word, a hidden token."""

    at: Array
    """int64 [units] or [units, k]: which outputs a unit looks at, -1: nothing there.

    Outputs are numbered through all rows, in their order: tokens where the task is per token, else rows.
    """
    value: Array
    """[units, ...], int64 or float32: what is right. Beside another run's wider one it is padded with zeros."""
    weight: Array
    """float32 [units]; the loss of the rows is sum(weight * losses)."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """The options and duties of every task."""

    name: ClassVar[str] = ""
    kind: ClassVar[str]
    """The task whose data and answers it has: its own name, or that of the task it derives from."""
    columns: ClassVar[tuple[str, ...]]
    """The parts of its examples that data has columns of, as `Columns` names them."""
    optional: ClassVar[tuple[str, ...]] = ("pair",)
    """Those that data may lack; where nothing is learned from the data, it may also lack the right answer."""
    joined: ClassVar[tuple[str, ...]] = ()
    """Those that may be joined from several columns."""
    measures: ClassVar[tuple[str, ...]]
    """Its metrics; the first decides."""
    per_token: ClassVar[bool] = False
    """Whether every token gets an answer; if not, rows are pooled."""
    gives_answers: ClassVar[bool] = True
    """Whether it gives answers to users; if not, what it gives for a row is its loss."""
    has_whole_rows: ClassVar[bool] = True
    """Whether an example's only row, if it is shorter than the limit, is all of its text."""
    compares_rows: ClassVar[bool] = False
    """Whether its loss is about several rows at once: all rows about one subject are then in the same batch."""
    draws: ClassVar[bool] = False
    """Whether it adds noise to the input: it has a `draw` of its own."""
    joins_answers: ClassVar[bool] = False
    """Whether an ensemble can answer: it gives answers, and has a `together` of its own."""
    head: ClassVar[str | None] = None
    """A head that no other can replace."""
    loss_options: ClassVar[tuple[str, ...] | None] = None
    """The options that `losses` reads; None for all. Runs that agree in them share one call."""
    encode_options: ClassVar[tuple[str, ...] | None] = None
    """The options that `encode` reads beside its arguments; None for all. Runs that agree in them may share rows."""

    asked_options: ClassVar[tuple[str, ...] | None] = None
    """The options that `encode` reads for an example without a target, whatever the labels; None if others count too.
    Tasks of any type that agree in them share a call of the tokenizer."""

    max_length: int | None = option(None, "longest row in tokens; auto is the base's limit, at most 512")

    def __init_subclass__(cls) -> None:
        cls.draws = cls.draw is not Task.draw
        cls.joins_answers = cls.gives_answers and cls.together is not Task.together
        if "losses" in cls.__dict__ and "loss_options" not in cls.__dict__:
            cls.loss_options = None  # not its parent's
        if {"encode", "target_of"} & cls.__dict__.keys() and "encode_options" not in cls.__dict__:
            cls.encode_options = None
        if "encode" in cls.__dict__ and "asked_options" not in cls.__dict__:
            cls.asked_options = None
        # a faster way of its parent's would skip what it defines itself
        if "decode" in cls.__dict__ and "answers" not in cls.__dict__:
            cls.answers = Task.answers  # type: ignore[method-assign]
        if {"decode", "answers"} & cls.__dict__.keys() and "mixed_answers" not in cls.__dict__:
            cls.mixed_answers = classmethod(Task.mixed_answers.__func__)  # type: ignore[assignment, attr-defined]

    def __post_init__(self) -> None:
        config.refuse_out_of_range(self.name, self)
        if self.max_length is not None and self.max_length < 4:
            raise SpecError(f"{self.name}: max_length={self.max_length} is not valid: expected at least 4")

    @property
    def spec(self) -> str:
        """The shortest text that gives this task again."""
        return config.canonical(self.name, self)

    def fit(self, examples: Sequence[Example]) -> Self:
        """Settle options that follow from the training data."""
        return self

    def subject(self, example: Example) -> tuple[str, str | None]:
        """What an example is about; a split never has the same subject on both sides."""
        return example.shown(), example.pair

    @abstractmethod
    def read(self, record: Record, columns: Columns) -> Example:
        """Make an example; raises Unusable. Without a label column the target is None."""

    @abstractmethod
    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """The names of the head's outputs, in order."""

    @abstractmethod
    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """Rows of at most `limit` tokens; `Row.example` is the index of the example."""

    def packed(self, tokenizer: Any, examples: Sequence[Example], limit: int) -> Batch | None:
        """The rows of `encode` as one batch, if examples without targets have one row each and no `aux`; else None."""
        return None

    def label_names(self, example: Example) -> tuple[str, ...]:
        """The names in an example's target; none where a target is something else: a number, an answer."""
        return ()

    def draw(self, rows: Sequence[Row], tokenizer: Any, random: torch.Generator) -> list[Row]:
        """What a training step or an evaluation sees of these rows; a place for noise in the input."""
        return list(rows)

    @abstractmethod
    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """What the loss of these rows compares with, made on the host.

        Args:
            weights: [labels] how much each class counts.
        """

    @property
    def loss_key(self) -> tuple[Any, ...]:
        """Tasks with equal keys have the same `losses`."""
        options = self.loss_options
        return (type(self), self if options is None else tuple(getattr(self, name) for name in options))

    @property
    def encode_key(self) -> tuple[Any, ...]:
        """Tasks of one type with equal keys make the same rows of the same examples."""
        options = self.encode_options
        return (self,) if options is None else tuple(getattr(self, name) for name in options)

    @abstractmethod
    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """The loss of every unit, float32 [units]: tensor code alone, of no shape that depends on data.

        One call may hold units of many runs with different numbers of labels, and units of none, which count nothing:
        all their outputs are NOTHING and their value is 0, and their loss must be finite.

        Args:
            outputs: float32 [units, width] or [units, k, width], gathered at `Targets.at`; NOTHING where there is none,
                and in columns beyond the adapter's labels. The width may be larger than the number of labels.
            value: [units, ...] that of the targets, on the same device.
        """

    def loss(
        self,
        outputs: Sequence[Tensor],
        rows: Sequence[Row],
        base: Base,
        weights: Sequence[float] | Tensor | None = None,
    ) -> Tensor:
        """The mean loss of the rows of one run.

        Args:
            outputs: one tensor per row, [labels] or [tokens, labels].
            weights: [labels] how much each class counts.
        """
        if isinstance(outputs, RowOutputs):
            flat = outputs.logits
        else:
            flat = torch.cat(list(outputs)) if self.per_token else torch.stack(list(outputs))
        counts = None if weights is None else torch.as_tensor(weights, dtype=torch.float32).tolist()
        targets = self.targets(rows, counts)
        at, value, weight = map(torch.from_numpy, (targets.at, targets.value, targets.weight))
        losses = self.losses(at_units(flat, at.to(flat.device)), value.to(flat.device), base)
        return (losses * weight.to(losses.device)).sum()

    @abstractmethod
    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """The answer for one example from all its rows."""

    def answers(
        self,
        outputs: Sequence[Sequence[Tensor]],
        rows: Sequence[Sequence[Row]],
        examples: Sequence[Example],
        labels: Sequence[str],
        base: Base,
    ) -> Sequence[Answer]:
        """The answers for many examples, from the rows of each; a task may have a faster way than one by one."""
        of_example = zip(outputs, rows, examples, strict=True)
        return [self.decode(out, windows, example, labels, base) for out, windows, example in of_example]

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
        """The answers for examples of many adapters that have this type of task, with any numbers of outputs.

        Args:
            tasks, labels: those of the adapter of each example.
        """
        numbers_of_adapter: dict[tuple[int, int], list[int]] = {}
        for i, adapter in enumerate(zip(map(id, tasks), map(id, labels), strict=True)):
            numbers_of_adapter.setdefault(adapter, []).append(i)
        answers: list[Answer] = [{}] * len(tasks)
        for numbers in numbers_of_adapter.values():
            chosen = [outputs[i] for i in numbers], [rows[i] for i in numbers], [examples[i] for i in numbers]
            answers_of_adapter = tasks[numbers[0]].answers(*chosen, labels[numbers[0]], base)
            for i, answer in zip(numbers, answers_of_adapter, strict=True):
                answers[i] = answer
        return answers

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """One answer from those of several adapters to the same example, with their `uncertainty`.

        Args:
            weights: how much each of them counts.
        """
        raise SpecError(f"{self.name} cannot be answered by an ensemble")

    @abstractmethod
    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """All metrics."""

    def score_rows(self, logits: Tensor, examples: Sequence[Example], labels: Sequence[str]) -> dict[str, float] | None:
        """The same metrics from [examples, labels], one row each, where that is faster than making answers."""
        return None

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """The task with a temperature that fits these logits (per example, of rows held out), if it has one."""
        return self

    def answer_loss(
        self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]], base: Base
    ) -> float | None:
        """The mean loss of calibrated answers (outputs and rows per example); None where it cannot be compared."""
        return None

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


def at_units(flat: Tensor, at: Tensor) -> Tensor:
    """The outputs that units look at, float32 [*at, width]; NOTHING where there is none.

    Indexing, not index_select or gather: its gradient sorts instead of adding atomically, so it is the same every time.
    What is not there looks at any row, each at another one: thousands at the same row would be added up one by one.

    Args:
        flat: [outputs, width] of all rows.
        at: int64 [units] or [units, k], on the same device; -1: nothing there.
    """
    missing = at < 0
    anywhere = torch.arange(at.numel(), device=at.device).view_as(at) % len(flat)
    return flat[torch.where(missing, anywhere, at)].float().masked_fill(missing.unsqueeze(-1), NOTHING)


def shares(classes: Array, weights: Sequence[float] | None) -> Array:
    """How much each unit counts given its class, float32 [units] with a sum of 1: torch's weighted mean."""
    if weights is None:
        return equal_shares(len(classes))
    each: Array = np.array(weights, dtype=np.float32)[classes]
    return each / np.float32(torch.from_numpy(each).sum().item())  # numpy adds up in another order


def equal_shares(units: int) -> Array:
    """Weights for this many units, all the same."""
    return np.full(units, 1 / max(1, units), dtype=np.float32)


def first_tokens(rows: Sequence[Row]) -> Array:
    """The number of every row's first token, counted through all rows."""
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
    return lengths.cumsum() - lengths


def in_natural_order(names: Sequence[str]) -> tuple[str, ...]:
    """Sorted; numbers by their value, so that 2 comes before 10."""

    def key(name: str) -> tuple[int, float, str]:
        try:
            number = float(name)
        except ValueError:
            number = math.nan
        return (0, number, name) if math.isfinite(number) else (1, 0.0, name)  # "nan" is a word, and has no order

    return tuple(sorted(set(names), key=key))
