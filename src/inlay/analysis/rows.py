"""Labelled examples as rows of token ids, once for all variants of an adapter, and what a variant makes of them."""

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
        targets: for a loss, which must know every label; without it an unknown label is one that is always missed.
    """
    if not examples:
        raise DataError(f"{name}: there are no rows to measure on")
    task, known = host.task(name), set(host.labels(name))
    if GOLD & {*task.columns} and (unlabelled := next((e for e in examples if e.target is None), None)):
        raise DataError(f"{unlabelled.place or 'a row'} has no label, so nothing can be measured on it")
    gold = {label: e.place for e in reversed(examples) for label in task.label_names(e)}
    unknown = sorted(gold.keys() - known)
    if gold and (len(unknown) == len(gold) or (targets and unknown)):
        place, mine = gold[unknown[0]], ", ".join(sorted(known)[:5])
        raise DataError(f"{place}: the label {unknown[0]!r} is not one that {name} knows: {mine}")
    bare = [replace(e, target=None) if gold and not targets else e for e in examples]
    found = host.translator(name).rows(load_tokenizer(host.base), bare, limit_of(host, name))
    return [row for own in found for row in own]


def in_batches(
    host: Host,
    asked: Sequence[tuple[str | None, Row]],
    run: Callable[[Host, Batch, Sequence[str | None]], Sequence[_T]],
) -> Iterator[tuple[int, _T]]:
    """(number, what `run` gives) of every row under an adapter, all of them in mixed batches."""
    for chunk in cut([len(row.ids) for _, row in asked], budget(host)):
        batch = batch_of([asked[i][1] for i in chunk])
        yield from zip(chunk.tolist(), run(host, batch, [asked[i][0] for i in chunk]), strict=True)


def deciding(host: Host, name: str, asked: str | None) -> str:
    """The metric asked for, else the one that the adapter was chosen by, else its task's own."""
    return host.task(name).primary(asked or host.adapter(name).about.get("metric"), host.labels(name))
