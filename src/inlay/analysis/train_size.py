"""What more rows gain: the metric against their number (He et al. 2021, figure 3; Fu et al. 2022, figure 4).

A line goes through the best setting of a method at each number of rows, chosen by its mean over seeds on validation.
Its values are those of test rows if every run has them; the band is one standard deviation over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, data_sets, method_of, rows_in_words, size_of, size_order
from inlay.errors import RunError
from inlay.sweeps.store import Row
from inlay.sweeps.values import shown

COLUMNS = ("data", "method", "rows", "setting", "runs", "mean", "std", "low", "high", "split")


@dataclass(frozen=True)
class Point:
    """The best setting of a method at a number of rows."""

    method: str
    size: str
    setting: str
    """The setting that validation chose."""
    values: tuple[float, ...]
    """The metric for every seed."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """The standard deviation of the sample; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def train_size(rows: Sequence[Row]) -> Finding:
    """The metric against the number of training rows, for every data set and method in these runs."""
    sets = data_sets(rows)
    points_of = {data.name: _points(data) for data in sets}
    sets = [data for data in sets if len({point.size for point in points_of[data.name]}) > 1]
    if not sets:
        raise RunError(
            "all runs have the same number of training rows; vary it, as in --grid train_size=1000,5000,none"
        )
    lines = [_row(data, point) for data in sets for point in points_of[data.name]]
    summary: dict[str, Any] = {}
    for data in sets:
        for method in dict.fromkeys(point.method for point in points_of[data.name]):
            line = [point for point in points_of[data.name] if point.method == method]
            summary[f"{data.name}: {method}"] = ", ".join(f"{point.mean:.4f} ({point.size})" for point in line)
    about = ", ".join(f"{data.name}: {len(data.done)} runs, {data.split} {data.metric}" for data in sets)
    return Finding("train-size", about, COLUMNS, lines, lambda: _draw(sets, points_of), summary)


def _points(data: DataSet) -> list[Point]:
    """The points in the order of methods, and of numbers of rows."""
    best: dict[tuple[str, str], Point] = {}
    order: dict[str, tuple[int, float]] = {}
    for entry in data.entries(lambda row: data.setting(row) | {"train_size": size_of(row)}):  # the best first
        method, size = entry.setting["method"], rows_in_words(entry.setting["train_size"])
        order[size] = size_order(entry.setting["train_size"])
        options = " ".join(f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k not in ("method", "train_size"))
        best.setdefault((method, size), Point(method, size, options, data.values(entry.runs)))
    methods = list(dict.fromkeys(method_of(row).spec for row in data.rows))
    return sorted(best.values(), key=lambda point: (methods.index(point.method), order[point.size]))


def _row(data: DataSet, point: Point) -> tuple[Any, ...]:
    statistics = (len(point.values), point.mean, point.std, min(point.values), max(point.values))
    return (data.name, point.method, point.size, point.setting, *statistics, data.split)


def _draw(sets: Sequence[DataSet], points_of: Mapping[str, Sequence[Point]]) -> Any:
    figure, panels = drawing.sheet(1, len(sets), width=4.2, height=3.4)
    methods = list(dict.fromkeys(point.method for data in sets for point in points_of[data.name]))
    handles: dict[str, Any] = {}
    for panel, data in zip(panels.flat, sets, strict=True):
        sizes = sorted({size_of(row) for row in data.done}, key=size_order)
        labels = list(dict.fromkeys(rows_in_words(size) for size in sizes))
        for i, method in enumerate(methods):
            line = [point for point in points_of[data.name] if point.method == method]
            if not line:
                continue
            x, colour = [labels.index(point.size) for point in line], drawing.colour(i)
            low, high = ([point.mean + sign * point.std for point in line] for sign in (-1, 1))
            panel.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
            style = {"marker": drawing.marker(i), "markersize": 5, "lw": 1.5, "color": colour}
            (handles[method],) = panel.plot(x, [point.mean for point in line], **style)
        panel.set_xticks(range(len(labels)), labels)
        drawing.label(panel, "training rows", f"{data.split} {data.metric}", data.name)
    drawing.legend(figure, handles, 2, size=10)
    return figure
