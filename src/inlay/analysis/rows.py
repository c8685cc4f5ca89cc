"""Labelled examples as rows of token ids, which all variants of an adapter share, and functions to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from inlay.base.load import load_tokenizer
from inlay.data.batch import Batch
from inlay.data.columns import GOLD
from inlay.engine.host import Host
from inlay.engine.predict import batch_of, budget, cut, limit_of
from inlay.errors import DataError
from inlay.tasks import Example, Row

_T = TypeVar("_T")


def rows_of(host: Host, name: str, examples: Sequence[Example], targets: bool = False) -> list[Row]:
    """The rows of an adapter's examples.

    Args:
        targets: for a loss, which needs every label; without it, an unknown label is one that is always missed.
    """
    if not examples:
        raise DataError(f"{name}: there are no rows to measure on")
    task, known = host.task(name), set(host.labels(name))
    if GOLD & {*task.columns} and (unlabelled := next((e for e in examples if e.target is None), None)):
        raise DataError(f"{unlabelled.place or 'a row'} has no label, so nothing can be measured on it")
    gold = {label: e.place for e in reversed(examples) for label in task.label_names(e)}
    unknown = sorted(gold.keys() - known)
    if gold and (len(unknown) == len(gold) or (targets and unknown)):
        place, labels = gold[unknown[0]], ", ".join(sorted(known)[:5])
        raise DataError(f"{place}: the label {unknown[0]!r} is not one that {name} knows: {labels}")
    bare = [replace(e, target=None) if gold and not targets else e for e in examples]
    rows_of_example = host.translator(name).rows(load_tokenizer(host.base), bare, limit_of(host, name))
    return [row for rows in rows_of_example for row in rows]


def in_batches(
    host: Host,
    requests: Sequence[tuple[str | None, Row]],
    run: Callable[[Host, Batch, Sequence[str | None]], Sequence[_T]],
) -> Iterator[tuple[int, _T]]:
    """(number, result of `run`) for every row under its adapter, in mixed batches."""
    for chunk in cut([len(row.ids) for _, row in requests], budget(host)):
        batch = batch_of([requests[i][1] for i in chunk])
        yield from zip(chunk.tolist(), run(host, batch, [requests[i][0] for i in chunk]), strict=True)


def deciding(host: Host, name: str, metric: str | None) -> str:
    """This metric, else the one that chose the adapter's state, else its task's own."""
    return host.task(name).primary(metric or host.adapter(name).about.get("metric"), host.labels(name))
