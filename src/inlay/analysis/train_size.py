"""What more rows buy: the metric against their number (He et al. 2021, figure 3; Fu et al. 2022, figure 4).

A line goes through the best setting of a method at each number of rows, chosen by its mean over seeds on validation.
Its values are those on test rows where every run has them; the band is one standard deviation over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, data_sets, method_of, rows_told, size_of, size_order
from inlay.errors import RunError
from inlay.sweeps.store import Row
from inlay.sweeps.values import shown

COLUMNS = ("data", "method", "rows", "setting", "runs", "mean", "std", "low", "high", "split")


@dataclass(frozen=True)
class Point:
    """The best setting of a method at one number of rows."""

    method: str
    size: str
    setting: str
    """What validation chose."""
    values: tuple[float, ...]
    """Of its seeds."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Of the sample; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def train_size(rows: Sequence[Row]) -> Finding:
    """The metric against the number of training rows, for every data set and method in these runs."""
    sets = data_sets(rows)
    found = {one.name: _points(one) for one in sets}
    sets = [one for one in sets if len({point.size for point in found[one.name]}) > 1]
    if not sets:
        raise RunError(
            "all runs have the same number of training rows; vary it, as in --grid train_size=1000,5000,none"
        )
    lines = [_row(one, point) for one in sets for point in found[one.name]]
    summary: dict[str, Any] = {}
    for one in sets:
        for method in _methods(found[one.name]):
            own = [point for point in found[one.name] if point.method == method]
            summary[f"{one.name}: {method}"] = ", ".join(f"{point.mean:.4f} ({point.size})" for point in own)
    about = ", ".join(f"{one.name}: {len(one.done)} runs, {one.split} {one.metric}" for one in sets)
    return Finding("train-size", about, COLUMNS, lines, lambda: _draw(sets, found), summary)


def _points(one: DataSet) -> list[Point]:
    """By method, and by the number of rows."""

    best: dict[tuple[str, str], Point] = {}
    order: dict[str, tuple[int, float]] = {}
    for entry in one.entries(lambda row: one.setting(row) | {"train_size": size_of(row)}):  # the best first
        method, size = entry.setting["method"], rows_told(entry.setting["train_size"])
        order[size] = size_order(entry.setting["train_size"])
        more = " ".join(f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k not in ("method", "train_size"))
        best.setdefault((method, size), Point(method, size, more, one.values(entry.runs)))
    methods = list(dict.fromkeys(method_of(row).spec for row in one.rows))
    return sorted(best.values(), key=lambda point: (methods.index(point.method), order[point.size]))


def _methods(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.method for point in points))


def _row(one: DataSet, point: Point) -> tuple[Any, ...]:
    told = (len(point.values), point.mean, point.std, min(point.values), max(point.values))
    return (one.name, point.method, point.size, point.setting, *told, one.split)


def _draw(sets: Sequence[DataSet], found: Mapping[str, Sequence[Point]]) -> Any:
    figure, panels = drawing.sheet(1, len(sets), width=4.2, height=3.4)
    methods = list(dict.fromkeys(point.method for one in sets for point in found[one.name]))
    handles: dict[str, Any] = {}
    for panel, one in zip(panels.flat, sets, strict=True):
        sizes = sorted({size_of(row) for row in one.done}, key=size_order)
        labels = list(dict.fromkeys(rows_told(size) for size in sizes))
        for i, method in enumerate(methods):
            own = [point for point in found[one.name] if point.method == method]
            if not own:
                continue
            x, colour = [labels.index(point.size) for point in own], drawing.colour(i)
            low, high = ([point.mean + sign * point.std for point in own] for sign in (-1, 1))
            panel.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
            how = {"marker": drawing.marker(i), "markersize": 5, "lw": 1.5, "color": colour}
            (handles[method],) = panel.plot(x, [point.mean for point in own], **how)
        panel.set_xticks(range(len(labels)), labels)
        drawing.label(panel, "training rows", f"{one.split} {one.metric}", one.name)
    drawing.legend(figure, handles, 2, size=10)
    return figure
