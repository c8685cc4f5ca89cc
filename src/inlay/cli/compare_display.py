"""What people see of a comparison: what will be run, the runs under way, the table, and what it means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.sweep_display import SweepProgress
from inlay.cli.train_display import decimals, show_done, spent
from inlay.screen import counted

if TYPE_CHECKING:
    from inlay.comparison.plan import Part
    from inlay.comparison.runner import ComparisonRunner
    from inlay.comparison.table import Comparison


class CompareProgress(SweepProgress):
    """The live table of a sweep, with a metric for every dataset and a line for every baseline."""

    def __init__(self, screen: output.Console, runner: ComparisonRunner):
        super().__init__(screen, runner)
        self._deciding = {trial.label: trial.data.metric for trial in runner.trials}

    def _metric(self, run: str) -> str:
        return self._deciding[run]

    def _baseline(self, event: dict[str, Any]) -> None:
        metric = event["metric"]
        value = decimals(event["metrics"]["validation"][metric])
        self.screen.print(f"{event['run']}: {metric} {value}", style="dim", soft_wrap=True)


def show_plan(screen: output.Console, runner: ComparisonRunner) -> None:
    """What will be run, on which datasets, and what is done already."""
    for part in runner.parts:
        show_part(screen, part, part.about.name)
    methods = len(runner.parts[0].space.branches)
    settings = len(runner.parts[0].trials) // (methods * runner.plan.seeds)
    counts = [(methods, "method"), (settings, "setting"), (runner.plan.seeds, "seed"), (len(runner.parts), "dataset")]
    summary = ", ".join(counted(count, noun) for count, noun in counts)
    screen.print(f"comparison: {counted(runner.runs, 'run')}: {summary}", soft_wrap=True)
    show_done(screen, runner.rows())


def show_part(screen: output.Console, part: Part, name: str, metric: str | None = None) -> None:
    """One dataset, and notes on it.

    Args:
        metric: the one that a recipe reports; a recipe has no options for columns.
    """
    about = part.about
    rows = ", ".join(f"{count:,} to {_VERBS[split]}" for split, count in about.rows.items())
    line = f"{name}: {about.task}, {rows}; {metric or about.metric}, reported on {about.split} rows"
    line += f"; chosen by {about.metric}" if metric not in (None, about.metric) else ""
    screen.print(line, soft_wrap=True)
    for note in next(iter(part.data.values())).notes:
        screen.print(f"  {note if metric is None else note.partition(' (pass ')[0]}", style="dim", soft_wrap=True)


_VERBS = {"train": "train", "validation": "validate", "test": "test"}


def show_comparison(screen: output.Console, comparison: Comparison) -> None:
    """The table, as wide as the screen allows, and sentences on it."""
    from inlay.comparison import significance
    from inlay.comparison.exports import COST, cells, header, total_name

    columns = header(comparison)
    lines = [cells(comparison, line) for line in comparison.lines]
    right = [*COST, total_name(comparison)]
    screen.print()
    show_blocks(screen, columns, lines, right, [i for i, line in enumerate(comparison.lines) if line.is_best])
    for note in comparison.notes:
        screen.print(note, style="red" if " failed: " in note else "yellow", soft_wrap=True)
    spread = f"± over {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else "one seed"
    tries = f"the best of {comparison.settings} settings by validation, " if comparison.settings > 1 else ""
    screen.print(f"{tries}{spread}; against the best: {significance.TEST}", style="dim", soft_wrap=True)
    if any(dataset.split == "validation" for dataset in comparison.datasets):
        names = ", ".join(dataset.name for dataset in comparison.datasets if dataset.split == "validation")
        screen.print(
            f"no test rows ({names}): validation rows also picked the settings, so scores are slightly optimistic",
            style="dim",
        )
    screen.print(spent(comparison.rows, comparison.store), style="dim", soft_wrap=True)
    screen.print()
    for sentence in comparison.says:
        screen.print(f"{sentence}.", soft_wrap=True)


def show_blocks(
    screen: output.Console,
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    right: Sequence[str],
    bold: Collection[int] = (),
) -> None:
    """Print a table, in several where the screen is too narrow; the lines with these numbers are bold."""
    for block in blocks(columns, lines, screen.width):
        table = output.table(*(columns[i] for i in block), right=right, keep=columns)
        for number, line in enumerate(lines):
            table.add_row(*(line[i] for i in block), style="bold" if number in bold else None)
        screen.print(table)
        screen.print()


def blocks(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The columns of each table that is no wider than `width`; the first column is in all of them."""
    widths = [
        max(len(part) for text in (name, *(line[i] for line in lines)) for part in text.split("\n"))
        for i, name in enumerate(columns)
    ]
    tables: list[list[int]] = [[0]]
    for i in range(1, len(columns)):
        taken = sum(widths[j] + output.GAP for j in tables[-1])
        if len(tables[-1]) > 1 and taken + widths[i] > width:
            tables.append([0])
        tables[-1].append(i)
    return tables
