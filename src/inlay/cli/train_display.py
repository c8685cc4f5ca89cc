"""What people see when a training is over: how good it is, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inlay.cli import output
from inlay.cli.score_notes import majority, nothing_learned, worse
from inlay.library.card_text import clock as clock
from inlay.library.card_text import one_line
from inlay.tracking.progress import Progress as Progress
from inlay.tracking.progress import decimals as decimals
from inlay.tracking.progress import show_data as show_data

if TYPE_CHECKING:
    from rich.table import Table

    from inlay.runs.prepare import Prepared
    from inlay.runs.result import Result
    from inlay.sweeps.store import Row

_ROOMY = 100
"""The width of a terminal that has room for everything."""


def metric_table(columns: Mapping[str, Mapping[str, float]], deciding: object, indent: str = "") -> Table:
    """A row for every metric of any column; the one that decides has a star."""
    table = output.table("", *columns, right=list(columns))
    for name in dict.fromkeys(name for metrics in columns.values() for name in metrics):
        cells = (decimals(metrics[name]) if name in metrics else "" for metrics in columns.values())
        table.add_row(f"{indent}{one_line(name)}{' *' if name == deciding else ''}", *cells)
    return table


def spent(rows: Sequence[Row], store: object) -> str:
    """What runs have cost, and where they are stored."""
    seconds, tokens = sum(row.seconds for row in rows), sum(row.tokens for row in rows)
    return f"{clock(seconds)} and {tokens:,} tokens of training; {store}"


def show_done(screen: output.Console, rows: Sequence[Row]) -> None:
    """How many runs are already done."""
    if done := sum(row.state in ("done", "pruned", "failed") for row in rows):
        verb = "is" if done == 1 else "are"
        screen.print(f"{done} of them {verb} already done and {verb} not repeated", style="yellow")


def show_result(screen: output.Console, result: Result, data: Prepared) -> None:
    """How good a single run is, and how to use it."""
    always, guess = majority(data)
    columns = {**result.metrics, **({"majority": guess} if guess else {})}
    screen.print()
    screen.print(metric_table(columns, result.metric))
    if guess:
        screen.print(f"majority: {always} on the {list(result.metrics)[-1]} rows", style="dim", soft_wrap=True)
    if note := worse(result):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    if note := nothing_learned(result, data):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    at = f"{result.kept}, {clock(result.seconds)}"
    screen.print(f"\n{result.name}@{result.version}: {at}, saved to {result.library}", soft_wrap=True)
    if data.task.gives_answers:
        text = '"a question" --pair "a context"' if data.task.kind == "qa" else '"a text"'
        other = ' --pair "another text"' if data.columns.pair else ""
        screen.print(f"Try: inlay predict {result.name} {text}{other}", style="dim", soft_wrap=True)


def show_summary(
    screen: output.Console, results: Sequence[Result], library: str, prepared: Mapping[int, Prepared]
) -> None:
    """How good the runs of a manifest are, and why some failed."""
    tested = any("test" in result.metrics for result in results)
    heads = ("validation", *(["test"] if tested else []), "majority", "f1_macro")
    sized = ["parameters"] if screen.width >= _ROOMY else []
    table = output.table("task", "method", *sized, "metric", *heads, right=("parameters", *heads))
    for number, result in enumerate(results):
        if result.ok:
            size = [f"{result.parameters['adapter']:,}"] if sized else []
            row = (f"{result.name}@{result.version}", result.method, *size)
            table.add_row(*row, result.metric, *_scores(result, majority(prepared[number])[1], tested))
        else:
            table.add_row(result.name, result.method, *[""] * len(sized), "failed", *[""] * len(heads))
    screen.print()
    screen.print(table)
    screen.print()
    bad = [result for result in results if not result.ok]
    for number, result in enumerate(results):
        notes = [worse(result), nothing_learned(result, prepared[number])] if result.ok else []
        for note in filter(None, notes):
            screen.print(f"{result.name}: {note}", style="yellow", soft_wrap=True)
    for result in bad:
        screen.print(f"{result.name} failed: {result.problem}", style="red", soft_wrap=True)
    screen.print(f"{len(results) - len(bad)} of {len(results)} tasks trained, saved to {library}", soft_wrap=True)


def _scores(result: Result, guess: Mapping[str, float], tested: bool) -> list[str]:
    """The deciding metric on both splits and of the majority, and macro F1, on the last split."""
    last = list(result.metrics.values())[-1]
    scores = [result.metrics.get(split, {}).get(result.metric) for split in ("validation", "test")[: 1 + tested]]
    scores += [guess.get(result.metric), last.get("f1_macro")]
    return ["" if value is None else decimals(value) for value in scores]
