"""Evaluate any number of adapters, each on its own rows, in mixed batches."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inlay.data.batch import Array, ramp
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.predict import Encoded, all_pooled, batch_of, decode, encode, pooled_blocks, run, run_rows
from inlay.errors import DataError, RunError
from inlay.tasks import Answer, Example, Row, RowOutputs, Task

if TYPE_CHECKING:
    from inlay.engine.host import Host


PARTS = 20
"""How many parts of the examples are left out in turn, to see how far a score depends on them."""


def outputs_of(
    host: Host, parts: Sequence[tuple[str, Sequence[Row]]], before_batch: Callable[[], None] | None = None
) -> list[Sequence[Tensor]]:
    """The logits of every part's rows, on the CPU; a part is (adapter, rows).

    Parts often share their rows: shared rows become arrays once, and the batches of all parts are cut from these.

    Args:
        before_batch: called before every batch; if it raises, no more batches run.
    """
    records = [host.loaded(name) for name, _ in parts]
    if not all_pooled(records) or not all(rows for _, rows in parts):
        names = [name for name, rows in parts for _ in rows]
        ran = iter(run_rows(host, [row for _, rows in parts for row in rows], names, before_batch=before_batch))
        return [[next(ran) for _ in rows] for _, rows in parts]
    distinct = {id(rows): rows for _, rows in parts}
    batch = batch_of([row for rows in distinct.values() for row in rows])
    counts = np.array([len(rows) for _, rows in parts])
    firsts = dict(zip(distinct, np.cumsum([0, *map(len, distinct.values())]).tolist(), strict=False))
    numbers = ramp(counts, np.array([firsts[id(rows)] for _, rows in parts]))
    names = [name for name, rows in parts for _ in rows]
    widths = np.array([record.width for record in records])
    width_of_row, place = np.repeat(widths, counts), np.empty(len(names), np.int64)
    logits: dict[int, Array] = {}  # one array for all parts of a width: many labels of a part cost others no memory
    for width in np.unique(widths).tolist():
        of_width = np.flatnonzero(width_of_row == width)
        place[of_width] = np.arange(len(of_width))
        logits[width] = np.empty((len(of_width), width), np.float32)
    for of_batch, values in pooled_blocks(host, batch, numbers, names, before_batch):
        for width in np.unique(width_of_row[of_batch]).tolist():
            same_width = width_of_row[of_batch] == width
            logits[width][place[of_batch[same_width]]] = values[same_width, :width]
    starts = place[counts.cumsum() - counts].tolist()
    return [
        RowOutputs(torch.from_numpy(logits[width][start : start + count]))
        for width, start, count in zip(widths.tolist(), starts, counts.tolist(), strict=True)
    ]


def by_example(
    outputs: Sequence[Tensor], rows: Sequence[Row], examples: int
) -> tuple[list[list[Tensor]], list[list[Row]]]:
    """The outputs and rows of each example, windows together."""
    of_output: list[list[Tensor]] = [[] for _ in range(examples)]
    of_row: list[list[Row]] = [[] for _ in range(examples)]
    for out, row in zip(outputs, rows, strict=True):
        of_output[row.example].append(out)
        of_row[row.example].append(row)
    return of_output, of_row


def measure(host: Host, name: str, examples: Sequence[Example]) -> tuple[dict[str, float], set[str]]:
    """All metrics of one adapter on labelled examples, and the labels among them that it does not know.

    An unknown label counts as missed; if all labels are unknown, that is an error.
    """
    answers, unknown = answers_to(host, name, examples)
    return host.task(name).score(examples, answers, host.labels(name)), unknown


def answers_to(host: Host, name: str, examples: Sequence[Example]) -> tuple[Sequence[Answer], set[str]]:
    """An adapter's or ensemble's answers to labelled examples, and the labels among them that it does not know."""
    encoded, outputs, unknown = run_labelled(host, name, examples)
    return decode(host, encoded, outputs, AnswerOptions()), unknown


def run_labelled(
    host: Host, name: str, examples: Sequence[Example]
) -> tuple[Encoded, Sequence[Sequence[Tensor]], set[str]]:
    """Labelled examples as rows, their outputs, and the labels among them that the adapter does not know."""
    task, labels = host.task(name), set(host.labels(name))
    gold = {label for e in examples for label in task.label_names(e)}
    if gold and not gold & labels:
        mine, theirs = (", ".join(sorted(names)[:5]) for names in (labels, gold))
        raise DataError(f"{examples[0].place}: the labels are {theirs}; {name} knows {mine}")
    translator = host.translator(name)  # refuses other input than it was trained on: one text where it needs two
    # without targets, because an unknown label has no number
    bare = [translator.example(replace(e, target=None) if gold else e) for e in examples]
    encoded = encode(host, [(name, e) for e in bare])
    return encoded, run(host, encoded), gold - labels


def score(
    host: Host,
    name: str,
    examples: Sequence[Example],
    rows: Sequence[Row],
    outputs: Sequence[Tensor],
    task: Task | None = None,
) -> dict[str, float]:
    """All metrics of one adapter on these examples; `task` replaces the adapter's own."""
    task, labels = task or host.task(name), host.labels(name)
    if isinstance(outputs, RowOutputs) and [row.example for row in rows] == list(range(len(examples))):
        scores = task.score_rows(outputs.logits, examples, labels)
        if scores is not None:
            return scores
    answers = task.answers(*by_example(outputs, rows, len(examples)), examples, labels, host.base)
    return task.score(examples, answers, labels)


@functools.cache
def kept_without(examples: int, parts: int) -> list[list[int]]:
    """The numbers of the examples that remain without the first, second ... part; parts are drawn at random.

    Every n-th row, or n rows in sequence, would not be a fair sample: files are often sorted, or alternate.
    """
    order = list(range(examples))
    random.Random("inlay parts").shuffle(order)
    parts_left_out = [set(order[part::parts]) for part in range(parts)]
    return [[i for i in range(examples) if i not in left_out] for left_out in parts_left_out]


def replicates(
    host: Host,
    name: str,
    examples: Sequence[Example],
    rows: Sequence[Row],
    outputs: Sequence[Tensor],
    task: Task,
    metric: str,
) -> list[float]:
    """A metric without the first, second ... part of the examples: the delete-a-group jackknife, for any metric.

    Parts are the same for all runs on these examples, so differences of two runs' replicates give the error of the
    difference of their scores. Empty where there is nothing to compare.
    """
    parts, labels = min(PARTS, len(examples)), host.labels(name)
    if parts < 2 or not task.gives_answers:
        return []
    answers = task.answers(*by_example(outputs, rows, len(examples)), examples, labels, host.base)
    values = []
    for kept in kept_without(len(examples), parts):
        try:
            scores = task.score([examples[i] for i in kept], [answers[i] for i in kept], labels)
        except RunError:  # the remaining examples cannot be scored: no word, no row
            return []
        values.append(scores.get(metric, math.nan))
    return values if all(map(math.isfinite, values)) else []
