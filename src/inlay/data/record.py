"""A record: one row of an input file, before anyone knows what it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from inlay.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """One row: column name -> value, and where it stands."""

    fields: Mapping[str, Any]
    place: str
    """`sms.csv:12`, or `train.parquet row 3` where there are no lines."""


Bad = Callable[[str, str], None]
"""What to do with a row that cannot be used: (place, problem)."""


def stop(place: str, problem: str) -> NoReturn:
    """The default: the first bad row ends the reading."""
    raise DataError(f"{place}: {problem}")


class Skipped:
    """Goes on after a bad row and remembers it: `--skip-bad-rows`."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def __call__(self, place: str, problem: str) -> None:
        """Count the row; keep the first few messages."""
        self.count += 1
        if len(self.first) < 5:
            self.first.append(f"{place}: {problem}")
