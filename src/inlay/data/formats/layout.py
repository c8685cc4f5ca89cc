"""What a format finds out about a file when it is opened, and how it will read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from inlay.data.record import Bad, Record


@dataclass(frozen=True)
class Layout:
    """Columns, hints and notes, known from the beginning of the file; `read` streams the rest."""

    columns: tuple[str, ...]
    read: Callable[[Bad], Iterator[Record]]
    hints: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def shown(value: object, room: int = 40) -> str:
    """A value as it may stand in a message: quoted, on one line, cut."""
    text = repr(value)
    return text if len(text) <= room else f"{text[: room - 4]}...{text[-1]}"
