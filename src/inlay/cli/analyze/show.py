"""What the figures of adapters share: their options, reading adapters and rows, and writing the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from inlay.cli import eval_data, options, output
from inlay.cli.help import OUTPUT
from inlay.cli.named_adapters import host_with, open_library

if TYPE_CHECKING:
    from inlay.analysis.finding import Finding
    from inlay.engine.host import Host
    from inlay.tasks import Example

Out = Annotated[Path | None, OUTPUT.option("STEM", "Write STEM.png, STEM.svg and STEM.csv.  [default: NAME-KIND]")]


class Figure(NamedTuple):
    """Where the adapters are, and where the figure goes."""

    out: Out = None
    base: options.TrainedBase = None
    library: options.Library = None
    as_json: output.AsJson = False

    def read(
        self, names: Sequence[str], data: str | None, sample: eval_data.Sample, labelled: bool = True
    ) -> tuple[Host, str, list[Example]]:
        """The adapters on their base, where the rows of the first one come from, and these rows."""
        store = open_library(self.library)
        entries = eval_data.check(store, names, self.base, data, sample.split, labelled=labelled)
        host, screen = host_with(self.base, None, store, entries), output.console(self.as_json)
        first = (names[0], entries[names[0]])
        where, rows = eval_data.read_labelled(host, *first, data, screen, sample, labelled)
        return host, where, rows

    def finish(self, finding: Finding, *names: str) -> None:
        """Write the files and show the summary."""
        finish(finding, self.out, "-".join(names), self.as_json)


def finish(finding: Finding, out: Path | None, name: str, as_json: bool) -> None:
    """Write a finding's files and show its summary."""
    screen = output.console(as_json)
    stem = out or Path(f"{name.replace('@', '-').replace('/', '-')}-{finding.kind}")
    files = finding.write(stem)
    screen.print(finding.about, soft_wrap=True)
    table = output.table("", "value", right=("value",))
    for key, value in finding.summary.items():
        if isinstance(value, int | float | str):
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    if table.row_count:
        screen.print(table)
    screen.print(f"written: {', '.join(map(str, files))}", style="dim", soft_wrap=True)
    output.document({**finding.document(), "files": [str(file) for file in files]}, as_json)
