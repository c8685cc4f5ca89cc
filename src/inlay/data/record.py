"""Records: rows of an input file, before it is known what its columns are for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from inlay.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """A row: column name -> value, and where it stands."""

    fields: Mapping[str, Any]
    place: str
    """`sms.csv:12`, or `train.parquet row 3` where there are no lines."""


_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def several(column: str, names: Collection[str]) -> list[str]:
    """The columns that `subject,body` stands for: one, if a column has this very name."""
    if column in names or "," not in column:
        return [column]
    return [part.strip() for part in column.split(",")]


def as_flag(value: object) -> bool | None:
    """0 or 1 as files have them; None for anything else."""
    return _FLAGS.get(str(value).strip().lower())


Bad = Callable[[str, str], None]
"""What to do with a row that cannot be used: (place, problem)."""


def stop(place: str, problem: str) -> NoReturn:
    """The default: the first bad row ends the reading."""
    raise DataError(f"{place}: {problem}")


def stop_or_skip(place: str, problem: str) -> NoReturn:
    """`stop`, for users who can ask for `Skipped`."""
    stop(place, f"{problem}; --skip-bad-rows leaves such rows out")


class Skipped:
    """Counts bad rows and lets the reading go on: `--skip-bad-rows`."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    @property
    def note(self) -> str:
        """How many rows, and the first; empty if there are none."""
        if not self.first:
            return ""
        rows = "row" if self.count == 1 else "rows"
        return f"skipped {self.count:,} {rows} that cannot be used; the first: {self.first[0]}"

    def __call__(self, place: str, problem: str) -> None:
        """Count the row; keep the first few messages."""
        self.count += 1
        if len(self.first) < 5:
            self.first.append(f"{place}: {problem}")


@dataclass(frozen=True)
class Source:
    """Rows to be read, and what is known of their file."""

    name: str
    """As the user gave it."""
    format: str
    """csv, tsv, json, jsonl, parquet, conll, conllu, squad, glue or hub."""
    columns: tuple[str, ...]
    hints: Mapping[str, str]
    """What the file's layout tells, role -> column: task, metric, text, pair, label, tokens, tags ..."""
    notes: tuple[str, ...]
    """Lines worth telling the user."""
    read: Callable[[Bad], Iterator[Record]] = field(repr=False, compare=False)

    def records(self, bad: Bad = stop) -> Iterator[Record]:
        """Stream the rows; `bad` is called for those that cannot be used. A source without any is an error."""
        is_empty = True

        def report(place: str, problem: str) -> None:
            nonlocal is_empty
            is_empty = False
            bad(place, problem)

        for record in self.read(report):
            is_empty = False
            yield record
        if is_empty:
            raise DataError(f"{self.name}: no rows; expected at least one")


def shown(value: object, room: int = 40) -> str:
    """A value for a message: quoted, on one line, cut."""
    text = repr(value)
    return text if len(text) <= room else f"{text[: room - 4]}...{text[-1]}"
