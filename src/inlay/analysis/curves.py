"""The course of a training: loss and metric on validation rows against steps (He et al. 2021, figures 5 and 9).

Lines are means over the seeds of a setting, bands go from its lowest run to its highest. The summary has the numbers of
the paper's table 6: the mean over all evaluations, and the best one. If they are far apart, it mattered when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from inlay import drawing, metrics
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, best_of, data_sets, lr_of, method_of
from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.library.defaults import restated
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry
from inlay.sweeps.values import shown

COLUMNS = ("data", "setting", "step", "runs", "loss", "loss low", "loss high", "metric", "metric low", "metric high")
MOST = 6
"""The most lines of a picture; of more settings, only the best of each method is drawn."""
LOSSES = {"validation": "validation loss", "training": "training loss (of the steps before)"}


@dataclass(frozen=True)
class Point:
    """The evaluations of a setting's runs at a step."""

    step: int
    losses: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """A setting's evaluations."""

    label: str
    points: tuple[Point, ...]
    mean: float
    """Of the metric over all evaluations of a run, and then over runs."""
    best: float
    """The mean over runs of each run's best evaluation."""

    @property
    def table(self) -> str:
        """`61.2 (63.5)`: mean and best times a hundred, as in the paper."""
        return f"{100 * self.mean:.1f} ({100 * self.best:.1f})"


def curves(rows: Sequence[Row]) -> Finding:
    """Validation loss and metric of runs that kept their evaluations."""
    sets = data_sets(rows)
    kinds = {data.name: _loss_kind(data.done) for data in sets}
    curves_of = {data.name: [_curve(data, entry, kinds[data.name]) for entry in _choose_entries(data)] for data in sets}
    if not any(len(curve.points) > 1 for drawn in curves_of.values() for curve in drawn):
        raise RunError("a curve needs two evaluations or more; train with --eval-every N, or for more epochs")
    lines = [_row(name, curve, point) for name, drawn in curves_of.items() for curve in drawn for point in curve.points]
    summary = {f"{d.name}: {curve.label}": f"{d.metric} {curve.table}" for d in sets for curve in curves_of[d.name]}
    about = f"{', '.join(curves_of)}: mean (best) over evaluations on validation rows, times a hundred"
    return Finding("curves", about, COLUMNS, lines, lambda: _draw(sets, curves_of, kinds), summary)


def row_of(adapter: Adapter, card: Mapping[str, Any]) -> Row:
    """A trained adapter as a sweep's row: the adapter's file keeps its evaluations."""
    about = adapter.about
    history = about.get("history")
    if not isinstance(history, list) or not history:
        raise RunError(f"{adapter.name or 'the adapter'} does not know how it was trained: its file has no evaluations")
    metric = str(about.get("metric") or "")
    config = {**restated(about.get("config") or {}), "method": adapter.method}
    measured = about.get("metrics") or {}
    value = measured.get("validation", {}).get(metric)
    return Row(
        id=adapter.name,
        position=0,
        label=adapter.name,
        setting={"method": adapter.method},
        seed=adapter.seed,
        config=config,
        state="done",
        metric=metric,
        value=0.0 if value is None else value,
        metrics=measured,
        history=history,
        parameters=dict(card.get("parameters") or {}),
    )


def _choose_entries(data: DataSet) -> list[Entry]:
    """The settings that are drawn: all if they are few, else the best of each method."""
    entries = data.entries(lambda row: data.setting(row) if evaluations(row) else None)
    if not entries:
        raise RunError(f"runs on {data.name} have no evaluations")
    if len(entries) > MOST:
        entries = list(best_of(entries, "method").values())[:MOST]
    return sorted(entries, key=lambda e: (e.setting["method"], e.setting["lr"]))


def evaluations(row: Row) -> list[dict[str, Any]]:
    """The evaluations on a run's own task."""
    return [e for e in row.history if isinstance(e.get("metrics"), Mapping) and row.metric in e["metrics"]]


def _loss_kind(rows: Sequence[Row]) -> str:
    """The loss to draw: adapters of earlier versions only have that of their training rows."""
    known = all(_loss_at(e, "validation") is not None for row in rows for e in evaluations(row))
    return "validation" if known else "training"


def _loss_at(entry: Mapping[str, Any], kind: str) -> float | None:
    if kind == "training":
        return entry.get("loss")
    if "perplexity" in entry["metrics"]:
        return math.log(entry["metrics"]["perplexity"])
    return entry.get("validation_loss")


def _curve(data: DataSet, entry: Entry, kind: str) -> Curve:
    points_at: dict[int, list[tuple[float, float]]] = {}
    means, bests = [], []
    for row in entry.runs:
        of_run = evaluations(row)
        for e in of_run:
            loss = _loss_at(e, kind)
            points_at.setdefault(e["step"], []).append((math.nan if loss is None else loss, e["metrics"][data.metric]))
        values = [e["metrics"][data.metric] for e in of_run]
        means.append(fmean(values))
        bests.append(min(values) if data.metric in metrics.LOWER_IS_BETTER else max(values))
    points = (Point(step, *(tuple(v) for v in zip(*points_at[step], strict=True))) for step in sorted(points_at))
    options = [f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k != "method"]
    rates = len({lr_of(row) for row in data.rows if method_of(row).spec == entry.setting["method"]})
    label = " ".join([entry.setting["method"], *(options if rates > 1 else options[1:])])
    return Curve(label, tuple(points), fmean(means), fmean(bests))


def _row(data: str, curve: Curve, point: Point) -> tuple[Any, ...]:
    spread = [(fmean(v), min(v), max(v)) for v in (point.losses, point.values)]
    return (data, curve.label, point.step, len(point.values), *spread[0], *spread[1])


def _draw(sets: Sequence[DataSet], curves_of: Mapping[str, Sequence[Curve]], kinds: Mapping[str, str]) -> Any:
    figure, panels = drawing.sheet(len(sets), 2, width=4.4, height=2.8)
    labels = list(dict.fromkeys(curve.label for curves in curves_of.values() for curve in curves))
    for (left, right), data in zip(panels, sets, strict=True):
        for curve in curves_of[data.name]:
            i = labels.index(curve.label)
            for panel, values in ((left, "losses"), (right, "values")):
                _draw_line(panel, curve, values, i)
        for panel, name in ((left, LOSSES[kinds[data.name]]), (right, f"validation {data.metric}")):
            drawing.label(panel, "steps", name, data.name)
    drawn = drawing.handles(panels.flat)
    ordered = {label: drawn[label] for label in labels if label in drawn}
    drawing.legend(figure, ordered, 1 if max(map(len, ordered)) > 40 else min(2, len(ordered)))
    return figure


def _draw_line(panel: Any, curve: Curve, values: str, i: int) -> None:
    colour = drawing.colour(i)
    steps = [point.step for point in curve.points]
    runs_at = [getattr(point, values) for point in curve.points]
    dots = {"marker": drawing.marker(i), "markersize": 3.5} if len(steps) <= 30 else {}
    panel.plot(steps, [fmean(v) for v in runs_at], color=colour, lw=1.5, label=curve.label, **dots)
    if max(map(len, runs_at)) > 1:
        low, high = [min(v) for v in runs_at], [max(v) for v in runs_at]
        panel.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
