"""The files and columns of a run, read without torch: for `prepare`, and for `check`, which comes before everything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay import config, metrics
from inlay.data import columns as choosing
from inlay.data.columns import Columns
from inlay.data.record import Record, Skipped, stop, stop_or_skip
from inlay.data.source import is_local, open_source, open_splits
from inlay.errors import DataError, RunError
from inlay.registry import methods, tasks
from inlay.runs.run import Run

SAMPLE = 200
"""Rows that columns are guessed from."""


@dataclass(frozen=True)
class _Rows:
    """Rows given as objects, instead of a file."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    format: str = "objects"
    hints: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for row in self.rows for key in row))

    def records(self, bad: Callable[[str, str], None] = stop) -> Any:
        return (Record(row, f"{self.name}:{i}") for i, row in enumerate(self.rows, 1))


def name_of(run: Run) -> str:
    """The name of the data in messages."""
    return run.data if isinstance(run.data, str) else "the rows given"


def open_inputs(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Split -> its source, and what people should know of them."""
    options = {"format": run.format, "encoding": run.encoding}
    sources: dict[str, Any] = {}
    if isinstance(run.data, str):
        sources |= open_splits(run.data, **options)
    else:
        sources["train"] = _Rows("data", run.data)
    if "train" not in sources:
        raise DataError(f"{name_of(run)}: has no training rows, only {', '.join(sources)}")
    if run.val is not None:
        sources["validation"] = open_source(run.val, **options)
    if run.test is not None:
        if run.test_size is not None:
            raise RunError("test_size (--test-size) and test (--test) both give test rows; leave out one of the two")
        sources["test"] = open_source(run.test, **options)
    return sources, [note for source in sources.values() for note in source.notes]


def choose_columns(run: Run, source: Any, kind: str | None) -> tuple[str, Columns, str]:
    """(task, columns, a line that says what was guessed); `kind` is the task that was asked for."""
    given = {key: value for key in ("text", "pair", "label") if (value := getattr(run, key)) is not None}
    sample = list(itertools.islice(source.records(Skipped() if run.skip_bad_rows else stop_or_skip), SAMPLE))
    if not sample:
        raise DataError(f"{source.name}: has no rows")
    return choosing.choose(kind, source.columns, sample, given, source.hints, source.name)


def check(run: Run) -> None:
    """Raise what is wrong with a run's names, files and columns, without torch; `prepare` notices the rest."""
    methods.check(config.split_spec(run.method)[0])
    kind = None if run.task is None else config.split_spec(run.task)[0]
    if kind is not None:
        tasks.check(kind)
    if isinstance(run.data, str) and not is_local(run.data):
        return  # reading a hub dataset takes longer than loading torch
    sources, _ = open_inputs(run)
    if run.unlabelled is not None:
        open_source(run.unlabelled, format=run.format, encoding=run.encoding)
    if kind is not None and kind not in metrics.OF_TASK:
        return  # what it reads is known when it is imported
    task, _, _ = choose_columns(run, sources["train"], kind)
    if run.metric is not None:
        metrics.choose(metrics.OF_TASK[task], run.metric, task)
