"""A comparison as a table of plain cells, as CSV, LaTeX, HTML and a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inlay import drawing
from inlay.comparison.baselines import TFIDF
from inlay.comparison.tradeoff import Point, draw
from inlay.errors import RunError
from inlay.library.card_text import percent
from inlay.metrics import LOWER_IS_BETTER
from inlay.sweeps.exports import html_cells, latex_table, shown_exactly, write_rows, write_text

if TYPE_CHECKING:
    from inlay.comparison.table import Comparison, Line

COST = ("parameters", "of base", "size", "seconds")
"""The columns of costs, without the total, whose name says for how many tasks it is."""


def header(comparison: Comparison, between: str = "\n") -> list[str]:
    """The columns of the table; that of a dataset names the metric and the split."""
    names = [between.join((dataset.name, dataset.metric, dataset.split)) for dataset in comparison.datasets]
    average = ["average"] if len(names) > 1 else []
    parameters, share, size, seconds = COST
    return ["method", parameters, share, total_name(comparison), size, seconds, *names, *average, "against the best"]


def total_name(comparison: Comparison) -> str:
    """The name of the column of all tasks' parameters in bases: `9 tasks`."""
    return f"{comparison.tasks} task{'s' if comparison.tasks > 1 else ''}"


def cells(comparison: Comparison, line: Line) -> list[str]:
    """A line of the table."""
    cost = ["", "", "", "", f"{line.seconds:.1f}"]
    if not line.is_baseline:
        size = "" if line.bytes is None else sized(line.bytes)
        cost = [f"{line.parameters:,}", percent(line.share), f"{times(line.total or 0.0)}x", size, cost[-1]]
    values = []
    for dataset in comparison.datasets:
        cell = line.cells.get(dataset.name)
        values.append("" if cell is None else spread(cell.mean, cell.std, dataset.metric))
    metric = comparison.datasets[0].metric
    if len(comparison.datasets) > 1:
        values.append("" if line.average is None else spread(line.average, line.average_std, metric))
    return [line.method, *cost, *values, judged(line)]


def judged(line: Line) -> str:
    """The verdict on a line against the best, with p."""
    return line.verdict if line.p is None else f"{line.verdict}, p = {line.p:.2g}"


def spread(mean: float, std: float | None, metric: str) -> str:
    """`91.2 ± 0.5`: in points, unless less is better."""
    digits, scale = (4, 1.0) if metric in LOWER_IS_BETTER else (1, 100.0)
    return f"{scale * mean:.{digits}f}" + ("" if std is None else f" ± {scale * std:.{digits}f}")


def times(value: float) -> str:
    """A number of bases: `1.3`, with more digits if the first two are 1.0."""
    return f"{value:.3f}" if value < 1.05 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def sized(count: int) -> str:
    """`1.2 MB`."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def write_csv(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """A CSV file: a line for every method, dataset and seed, in the settings that were chosen."""
    methods = [line for line in comparison.lines if not line.is_baseline]
    keys = list(dict.fromkeys(key for line in methods for cell in line.cells.values() for key in cell.setting))
    columns = ["method", "baseline", "dataset", "split", "metric", "seed", "value", "mean", "validation mean", *keys]
    total = f"total for {total_name(comparison)}"
    columns += ["parameters", "share of base", total, "bytes", "seconds", "p", "verdict"]
    write_rows(path, [columns, *(row for line in comparison.lines for row in _csv_lines(comparison, line, keys))])


def _csv_lines(comparison: Comparison, line: Line, keys: Sequence[str]) -> list[list[Any]]:
    rows = []
    for dataset in comparison.datasets:
        cell = line.cells.get(dataset.name)
        if cell is None:
            continue
        for seed, value in cell.values.items():
            about = [line.method, int(line.is_baseline), dataset.name, dataset.split, dataset.metric, seed, value]
            setting = [shown_exactly(cell.setting[key], key) if key in cell.setting else "" for key in keys]
            size = [None, None] if line.is_baseline else [cell.parameters, cell.share]
            cost = [*size, line.total, cell.bytes, round(cell.seconds, 3), line.p, line.verdict]
            rows.append([*about, cell.mean, cell.validation, *setting, *cost])
    return rows


def write_latex(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """The table as a tabular in the style of booktabs, with the best in bold."""
    lines, bold = [cells(comparison, line) for line in comparison.lines], [line.is_best for line in comparison.lines]
    write_text(path, latex_table(header(comparison, ", "), lines, bold, [*COST, total_name(comparison)]))


def html_table(comparison: Comparison) -> str:
    """The table for notebooks."""
    return html_cells(comparison.name, header(comparison, ", "), [cells(comparison, line) for line in comparison.lines])


def write_plot(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Quality against trained parameters, in the format of the file's extension."""
    drawn, reference = points(comparison)
    title = ", ".join(dataset.name for dataset in comparison.datasets) if len(comparison.datasets) <= 4 else ""
    drawing.write(draw(drawn, metric=comparison.metric, reference=reference, title=title), path)


def points(comparison: Comparison) -> tuple[list[Point], str]:
    """The points and the name of their reference: full fine-tuning, else that of most layers, else the best method."""
    whole = [line for line in comparison.lines if not line.is_baseline and len(line.cells) == len(comparison.datasets)]
    if not whole:
        raise RunError("there is nothing to plot: no method has finished on every dataset")
    tuned = [line for line in whole if line.family == "finetune"]
    reference = max(tuned, key=lambda line: line.parameters) if tuned else whole[0]
    name = "full fine-tuning" if reference.share >= 1 else reference.method
    shown = [line for line in comparison.lines if not line.is_baseline or line.method == TFIDF]
    drawn = []
    for line in shown:
        for dataset, cell in line.cells.items():
            parameters = None if line.is_baseline else cell.parameters
            drawn.append(Point(line.family, line.method, parameters, dataset, cell.mean, reference.cells[dataset].mean))
    return drawn, name
