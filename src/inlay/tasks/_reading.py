"""What a record holds, for the tasks that read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.data.record import Record


class Unusable(Exception):  # noqa: N818 - it never leaves the reader
    """A record that a task cannot use; the message says why."""


def needed(record: Record, column: str) -> Any:
    """A value that must be there."""
    value = record.fields.get(column)
    if is_blank(value):
        raise Unusable(f"the column {column!r} is empty")
    return value


def is_blank(value: Any) -> bool:
    """Whether there is nothing in a cell."""
    return value is None or (isinstance(value, str) and not value.strip())


def as_text(record: Record, column: str) -> str:
    """A value as text."""
    value = needed(record, column)
    if isinstance(value, Mapping | list | tuple):
        raise Unusable(f"the column {column!r} holds a {type(value).__name__}, not text")
    return str(value)
