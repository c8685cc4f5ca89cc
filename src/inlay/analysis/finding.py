"""The result of an analysis: numbers, and a picture of them.

Every kind of analysis is a function in a file of its own that returns a `Finding`. The CSV holds exactly what the
picture shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inlay import drawing
from inlay.errors import RunError
from inlay.sweeps.exports import write_rows
from inlay.untrusted import cell


@dataclass(frozen=True)
class Finding:
    """A table, its summary, and how it is drawn."""

    kind: str
    about: str
    """A line that says what was measured, and on which rows."""
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    draw: Callable[[], Any] = field(repr=False, compare=False)
    """Makes the picture: a figure of `inlay.drawing.sheet`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The few most important numbers, by name; JSON."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"kind": self.kind, "about": self.about, "summary": dict(self.summary), "rows": rows}

    def to_csv(self, path: str | Path) -> None:
        """Write the numbers with all their digits; text that a spreadsheet would run gets an apostrophe."""
        write_rows(path, ([cell(value) for value in row] for row in (self.columns, *self.rows)))

    def write(self, stem: str | Path) -> list[Path]:
        """Write STEM.png, STEM.svg and STEM.csv; the folder is made if it does not exist."""
        stem = Path(stem)
        paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg", "csv")]
        try:
            stem.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {stem.parent}: {error}") from None
        drawing.write(self.draw(), *paths[:2])
        self.to_csv(paths[2])
        return paths
