"""What people see when a training is over: how good it is, and how to use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inlay.cli import output
from inlay.library.about import clock as clock
from inlay.training.progress import Progress as Progress
from inlay.training.progress import decimals as decimals
from inlay.training.progress import show_data as show_data

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.training.prepare import Prepared
    from inlay.training.result import Result


def show_result(screen: Console, result: Result, data: Prepared) -> None:
    """How good a single run is, and how to use it."""
    names = list(dict.fromkeys(name for found in result.metrics.values() for name in found))
    table = output.table("", *result.metrics, right=list(result.metrics))
    for name in names:
        marked = f"{name} *" if name == result.metric else name
        table.add_row(marked, *(decimals(found[name]) if name in found else "" for found in result.metrics.values()))
    screen.print()
    screen.print(table)
    if note := nothing_learned(result, data):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    at = f"best after {result.best_step} steps (epoch {result.best_epoch:.1f}), {clock(result.seconds)}"
    screen.print(f"\n{result.name}@{result.version}: {at}, kept in {result.library}", soft_wrap=True)
    if data.task.kind != "mlm":  # it has no answers
        text = '"a question" --pair "a context"' if data.task.kind == "qa" else '"a text"'
        other = ' --pair "another text"' if data.columns.pair else ""
        screen.print(f"use it: inlay predict {result.name} {text}{other}", style="dim", soft_wrap=True)


def show_summary(screen: Console, results: Sequence[Result], library: str) -> None:
    """How good the runs of a manifest are, and why some failed."""
    tested = any("test" in result.metrics for result in results)
    columns = ("task", "method", "parameters", "metric", "validation", *(["test"] if tested else []))
    table = output.table(*columns, right=("parameters", "validation", "test"))
    for result in results:
        if result.ok:
            found = [result.metrics.get(split, {}).get(result.metric) for split in ("validation", "test")]
            cells = ["" if value is None else decimals(value) for value in (found if tested else found[:1])]
            row = (f"{result.name}@{result.version}", result.method, f"{result.parameters['adapter']:,}")
            table.add_row(*row, result.metric, *cells)
        else:
            table.add_row(result.name, result.method, "", "failed", *[""] * (2 if tested else 1))
    screen.print()
    screen.print(table)
    screen.print()
    bad = [result for result in results if not result.ok]
    for result in bad:
        screen.print(f"{result.name} failed: {result.problem}", style="red", soft_wrap=True)
    screen.print(f"{len(results) - len(bad)} of {len(results)} tasks trained, kept in {library}", soft_wrap=True)


def nothing_learned(result: Result, data: Prepared) -> str:
    """A hint when a run is no better than a guess that needs no training; empty if it is."""
    advice = "try more epochs or a higher learning rate"
    if result.value == 0 and result.metric.startswith(("f1", "matthews")):
        return f"{result.metric} is 0: nothing was learned yet; {advice}"
    if data.task.kind == "classification" and "accuracy" in result.metrics["validation"]:
        label, count = Counter(e.target for e in data.validation.examples).most_common(1)[0]
        if result.metrics["validation"]["accuracy"] <= count / len(data.validation.examples):
            return f"no better than always answering {label!r} on the validation rows; {advice}"
    return ""
