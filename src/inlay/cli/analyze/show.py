"""What all kinds of `inlay analyze` share: where pictures go, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from inlay.cli import output
from inlay.cli.help import OUTPUT

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.analysis.finding import Finding

Out = Annotated[Path | None, OUTPUT.option("STEM", "Write STEM.png, STEM.svg and STEM.csv.  [default: NAME-KIND]")]


def finish(found: Finding, out: Path | None, name: str, screen: Console, as_json: bool) -> None:
    """Write a finding's files, and say what it comes to."""
    stem = out or Path(f"{name.replace('@', '-').replace('/', '-')}-{found.kind}")
    files = found.write(stem)
    screen.print(found.about, soft_wrap=True)
    table = output.table("", "value", right=("value",))
    for key, value in found.summary.items():
        if isinstance(value, int | float | str):
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    if table.row_count:
        screen.print(table)
    screen.print(f"written: {', '.join(map(str, files))}", style="dim", soft_wrap=True)
    if as_json:
        output.document({**found.document(), "files": [str(file) for file in files]})
