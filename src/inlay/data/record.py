"""A record: one row of an input file, before anyone knows what it is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from inlay.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """One row: column name -> value, and where it stands."""

    fields: Mapping[str, Any]
    place: str
    """`sms.csv:12`, or `train.parquet row 3` where there are no lines."""


_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def several(column: str, names: Collection[str]) -> list[str]:
    """The columns that `subject,body` stands for; one, where a column has this very name."""
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
    """The same where the user may ask for `Skipped`."""
    stop(place, f"{problem}; --skip-bad-rows leaves such rows out")


class Skipped:
    """Goes on after a bad row and remembers it: `--skip-bad-rows`."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    @property
    def note(self) -> str:
        """How many, and the first one; empty if there are none."""
        if not self.first:
            return ""
        rows = "row" if self.count == 1 else "rows"
        return f"skipped {self.count:,} {rows} that cannot be used; the first: {self.first[0]}"

    def __call__(self, place: str, problem: str) -> None:
        """Count the row; keep the first few messages."""
        self.count += 1
        if len(self.first) < 5:
            self.first.append(f"{place}: {problem}")
