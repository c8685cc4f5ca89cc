"""What the tasks over whole texts share: reading text columns, and rows for texts that may be too long."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat, starmap
from math import exp, inf, isfinite, log, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from inlay.base.load import Base
from inlay.config import option
from inlay.data.batch import Batch
from inlay.data.by_column import ByColumn
from inlay.data.columns import Columns
from inlay.data.record import Record, several
from inlay.tasks import Answer, Example, Row, RowOutputs, Task, Unusable, as_text, is_blank
from inlay.tasks._packed import PooledOutputs
from inlay.tasks._tokens import Ids, token_ids


def text_example(record: Record, columns: Columns, target: Any) -> Example:
    """An example of one text or a pair."""
    pair = _joined(record, columns.pair) if columns.pair else None
    return Example(_joined(record, columns.text), pair, (), target, "", record.place)


def _joined(record: Record, column: str) -> str:
    """The text of a column; or of several, with a space between them, of which some may be empty."""
    text = record.fields.get(column)
    if type(text) is str and not text.isspace() and text:
        return text
    parts = several(column, record.fields)
    if len(parts) == 1:
        return as_text(record, column)
    texts = [as_text(record, part) for part in parts if not is_blank(record.fields.get(part))]
    if not texts:
        raise Unusable(f"the columns {', '.join(parts)} are empty")
    return " ".join(texts)


def text_rows(
    tokenizer: Any,
    examples: Sequence[Example],
    limit: int,
    windows: bool,
    target: Callable[[Example], Any],
) -> list[Row]:
    """One row per example, cut at the limit; or, with `windows`, as many overlapping ones as it takes.

    Args:
        target: a row's target, for examples that have one.
    """
    rows: list[Row] = []
    for begin, end in _stretches(examples):
        chunk = examples[begin:end]
        ids, types = _token_ids(tokenizer, chunk, None if windows else limit)
        targets = [None if e.target is None else target(e) for e in chunk]
        fields_of_row = zip(ids, types or repeat(None), targets, range(begin, end))  # noqa: B905 - repeat has no end
        if not windows or max(map(len, ids)) <= limit:
            rows += starmap(Row, fields_of_row)
            continue
        too_long = [i for i, row in enumerate(ids) if len(row) > limit]
        overlaps = overlapping(tokenizer, [chunk[i] for i in too_long], limit, limit // 4)
        windows_of = dict(zip(too_long, overlaps, strict=True))
        for i, row in enumerate(fields_of_row):
            rows += [Row(*_row(*window), *row[2:]) for window in windows_of[i]] if i in windows_of else [Row(*row)]
    return rows


def _token_ids(tokenizer: Any, examples: Sequence[Example], limit: int | None) -> tuple[Ids, Ids | None]:
    """Ids and token types of examples that are all pairs, or all single texts."""
    pairs = [e.pair for e in examples] if examples[0].pair is not None else None
    return token_ids(tokenizer, [" ".join(e.words) if e.words else e.text for e in examples], pairs, limit)


def overlapping(
    tokenizer: Any, examples: Sequence[Example], limit: int, stride: int
) -> Iterator[list[tuple[Any, int]]]:
    """Windows over each text, or over the second text of a pair: (the tokenizer's answer, with offsets; number in it).

    The first text of a pair is in every window. It gets no more than half the room, and is cut if it needs more.
    """
    for begin, end in _stretches(examples):
        chunk, texts = examples[begin:end], [e.shown() for e in examples[begin:end]]
        is_pair = chunk[0].pair is not None
        rooms = [limit - tokenizer.num_special_tokens_to_add(pair=is_pair)] * len(chunk)
        if is_pair:
            texts, rooms = _first_texts(tokenizer, texts, rooms[0])
        windows: list[list[tuple[Any, int]]] = [[] for _ in chunk]
        alike: dict[int, list[int]] = {}
        for i, room in enumerate(rooms):
            alike.setdefault(max(0, min(stride, room // 2)), []).append(i)
        for fitting, numbers in alike.items():  # nearly always one group: a tokenizer is fast with many texts at once
            encoded = tokenizer(
                [texts[i] for i in numbers],
                [chunk[i].pair for i in numbers] if is_pair else None,
                truncation="only_second" if is_pair else "only_first",
                max_length=limit,
                stride=fitting,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for number, i in enumerate(encoded["overflow_to_sample_mapping"]):
                windows[numbers[i]].append((encoded, number))
        yield from windows


def _first_texts(tokenizer: Any, texts: Sequence[str], room: int) -> tuple[list[str], list[int]]:
    """First texts of pairs, cut at half the room, and the room that each leaves."""
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    cut, half = list(texts), room // 2
    spans = tokenizer(cut, **options)["offset_mapping"]
    rooms = [room - len(offsets) for offsets in spans]
    too_long = [i for i, offsets in enumerate(spans) if len(offsets) > half]
    for i in too_long:
        cut[i] = cut[i][: spans[i][half - 1][1]] if half else ""
    spans = tokenizer([cut[i] for i in too_long], **options)["offset_mapping"] if too_long else []
    for i, offsets in zip(too_long, spans, strict=True):
        rooms[i] = room - len(offsets)  # a word cut short may have other pieces
    return cut, rooms


def _stretches(examples: Sequence[Example]) -> Iterator[tuple[int, int]]:
    """Stretches of examples that are all pairs or all single texts: short enough for memory, long enough to be fast."""
    begin = 0
    for _, group in groupby([e.pair is None for e in examples]):
        end = begin + len(list(group))
        yield from ((i, min(i + 1000, end)) for i in range(begin, end, 1000))
        begin = end


def _row(encoded: Any, i: int) -> tuple[list[int], list[int] | None]:
    types = encoded.get("token_type_ids")
    return encoded["input_ids"][i], types[i] if types is not None and any(types[i]) else None


def pooled(outputs: Sequence[Sequence[Tensor]]) -> Tensor:
    """[examples, labels] the mean over each example's windows, in fp32; -inf beyond the labels of its own adapter."""
    if isinstance(outputs, PooledOutputs):
        return outputs.logits.float()
    if max(map(len, outputs), default=1) == 1:
        means = [windows[0] for windows in outputs]
    else:
        means = [torch.stack(list(windows)).float().mean(0) for windows in outputs]
    return pad_sequence(means, batch_first=True, padding_value=-inf).float()


def column(option: str, tasks: Sequence[Task], like: Tensor) -> Tensor:
    """[examples, 1] an option of the task of every example."""
    values = np.array([getattr(task, option) for task in tasks])[:, None]
    return torch.from_numpy(values).to(like)


def scores(labels: Sequence[Sequence[str]], p: Tensor) -> Sequence[Answer]:
    """Label -> score for every example; by column if all have the same labels.

    Args:
        p: [examples, columns]; an example's columns beyond its own labels are left out.
    """
    if len(set(map(id, labels))) == 1:
        return ByColumn(dict(zip(labels[0], p.t().tolist(), strict=True)))
    return list(map(dict, map(zip, labels, p.tolist())))  # each zip ends with the labels


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """One answer for a whole text: all answers come from one tensor, whatever the number of adapters."""

    encode_options: ClassVar[tuple[str, ...] | None] = ("long",)
    asked_options = ("long",)

    long: Literal["cut", "windows"] = option(
        "cut", "a text longer than max_length: cut it, or pool overlapping windows"
    )

    @abstractmethod
    def target_of(self, labels: Sequence[str]) -> Callable[[Example], Any]:
        """A function that makes a row's target of an example that has one."""

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """One row, or as many windows as it takes."""
        return text_rows(tokenizer, examples, limit, self.long == "windows", self.target_of(labels))

    def packed(self, tokenizer: Any, examples: Sequence[Example], limit: int) -> Batch | None:
        """None if there may be windows."""
        if self.long == "windows" or type(self).encode is not TextTask.encode:
            return None
        ids: list[Sequence[int]] = []
        types: list[Sequence[int] | None] = []
        for begin, end in _stretches(examples):
            chunk_ids, chunk_types = _token_ids(tokenizer, examples[begin:end], limit)
            ids += chunk_ids
            types += chunk_types or [None] * len(chunk_ids)
        return Batch.of(ids, types)

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """As `answers`, for one example."""
        return self.answers([outputs], [rows], [example], labels, base)[0]

    def answers(
        self,
        outputs: Sequence[Sequence[Tensor]],
        rows: Sequence[Sequence[Row]],
        examples: Sequence[Example],
        labels: Sequence[str],
        base: Base,
    ) -> Sequence[Answer]:
        """As `mixed_answers`, for one adapter."""
        count = len(outputs)
        return self.mixed_answers([self] * count, outputs, rows, examples, [labels] * count, base)

    def answer_loss(
        self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]], base: Base
    ) -> float | None:
        """An example counts once, however many windows it has; numbers are in the units of the data."""
        logits = pooled(outputs) / getattr(self, "temperature", 1.0)
        loss = self.loss(RowOutputs(logits), [windows[0] for windows in rows], base).item()
        return loss * getattr(self, "scale", 1.0) ** 2


def best_temperature(mean_loss: Callable[[float], float], rows: int) -> float:
    """The likeliest temperature, given the mean loss of this many rows; 1 if that is not finite.

    Its logarithm has a normal prior around 0 (standard deviation 1/2): a few rows without an error would otherwise ask
    for a temperature of zero, that is, for answers that are always sure. Golden section over 0.05 to 20.
    """

    def loss(t: float) -> float:
        return rows * mean_loss(t) + 2 * log(t) ** 2

    if not isfinite(loss(1.0)):  # nothing to fit to, or a run that diverged
        return 1.0
    low, high = log(0.05), log(20.0)
    ratio = (sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(exp(a)), loss(exp(b))
    for _ in range(40):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(exp(a))
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(exp(b))
    return round(exp((low + high) / 2), 4)
