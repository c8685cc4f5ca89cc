"""What training does on the way: loss and metric on validation rows against steps (He et al. 2021, figures 5 and 9).

Lines are means over the seeds of a setting, bands go from its lowest run to its highest. Beside them the numbers of the
paper's table 6: the mean over all evaluations, and the best one. Far apart, they say that it mattered when to stop.
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
"""Lines of a picture; of more settings, the best of each method is drawn."""
LOSSES = {"validation": "validation loss", "training": "training loss (of the steps before)"}


@dataclass(frozen=True)
class Point:
    """What the runs of a setting have at one step."""

    step: int
    losses: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """A setting's evaluations."""

    label: str
    points: tuple[Point, ...]
    mean: float
    """Of the metric over all evaluations, and then over runs."""
    best: float
    """Each run's best evaluation, and their mean."""

    @property
    def table(self) -> str:
        """`61.2 (63.5)`, as the paper has it, times a hundred."""
        return f"{100 * self.mean:.1f} ({100 * self.best:.1f})"


def curves(rows: Sequence[Row]) -> Finding:
    """Validation loss and metric of runs that kept their evaluations."""
    sets = data_sets(rows)
    kinds = {one.name: _loss_kind(one.done) for one in sets}
    found = {one.name: [_curve(one, entry, kinds[one.name]) for entry in _drawn(one)] for one in sets}
    if not any(len(curve.points) > 1 for own in found.values() for curve in own):
        raise RunError("a curve needs two evaluations or more; train with --eval-every N, or for more epochs")
    lines = [_row(one.name, curve, point) for one in sets for curve in found[one.name] for point in curve.points]
    summary: dict[str, Any] = {}
    for one in sets:
        for curve in found[one.name]:
            summary[f"{one.name}: {curve.label}"] = f"{one.metric} {curve.table}"
    about = f"{', '.join(one.name for one in sets)}: mean (best) over evaluations on validation rows, times a hundred"
    return Finding("curves", about, COLUMNS, lines, lambda: _draw(sets, found, kinds), summary)


def row_of(adapter: Adapter, card: Mapping[str, Any]) -> Row:
    """A trained adapter as the row of a sweep: its own file keeps its evaluations."""
    about = adapter.about
    history = about.get("history")
    if not isinstance(history, list) or not history:
        raise RunError(f"{adapter.name or 'the adapter'} does not know how it was trained: its file has no evaluations")
    metric = str(about.get("metric") or "")
    config = {**restated(about.get("config") or {}), "method": adapter.method}
    measured = about.get("metrics") or {}
    value = measured.get("validation", {}).get(metric)
    counts = dict(card.get("parameters") or {})
    given = (adapter.name, 0, adapter.name, {"method": adapter.method}, adapter.seed, config, "done", metric)
    return Row(*given, 0.0 if value is None else value, measured, history, counts)


def _drawn(one: DataSet) -> list[Entry]:
    """The settings that are drawn: all of few, of many the best of each method."""

    entries = one.entries(lambda row: one.setting(row) if evaluations(row) else None)
    if not entries:
        raise RunError(f"runs on {one.name} have no evaluations")
    if len(entries) > MOST:
        entries = list(best_of(entries, "method").values())[:MOST]
    return sorted(entries, key=lambda e: (e.setting["method"], e.setting["lr"]))


def evaluations(row: Row) -> list[dict[str, Any]]:
    """Those of a run's own task."""
    return [e for e in row.history if isinstance(e.get("metrics"), Mapping) and row.metric in e["metrics"]]


def _loss_kind(rows: Sequence[Row]) -> str:
    """Adapters of earlier versions know the loss of their training rows only."""
    known = all(_loss(e, "validation") is not None for row in rows for e in evaluations(row))
    return "validation" if known else "training"


def _loss(entry: Mapping[str, Any], kind: str) -> float | None:
    if kind == "training":
        return entry.get("loss")
    if "perplexity" in entry["metrics"]:
        return math.log(entry["metrics"]["perplexity"])
    return entry.get("validation_loss")


def _curve(one: DataSet, entry: Entry, kind: str) -> Curve:
    at: dict[int, list[tuple[float, float]]] = {}
    means, bests = [], []
    for row in entry.runs:
        own = evaluations(row)
        for e in own:
            loss = _loss(e, kind)
            at.setdefault(e["step"], []).append((math.nan if loss is None else loss, e["metrics"][one.metric]))
        values = [e["metrics"][one.metric] for e in own]
        means.append(fmean(values))
        bests.append(min(values) if one.metric in metrics.LOWER_IS_BETTER else max(values))
    points = (Point(step, *(tuple(v) for v in zip(*at[step], strict=True))) for step in sorted(at))
    more = [f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k != "method"]
    rates = len({lr_of(row) for row in one.rows if method_of(row).spec == entry.setting["method"]})
    label = " ".join([entry.setting["method"], *(more if rates > 1 else more[1:])])
    return Curve(label, tuple(points), fmean(means), fmean(bests))


def _row(data: str, curve: Curve, point: Point) -> tuple[Any, ...]:
    spread = [(fmean(v), min(v), max(v)) for v in (point.losses, point.values)]
    return (data, curve.label, point.step, len(point.values), *spread[0], *spread[1])


def _draw(sets: Sequence[DataSet], found: Mapping[str, Sequence[Curve]], kinds: Mapping[str, str]) -> Any:
    figure, panels = drawing.sheet(len(sets), 2, width=4.4, height=2.8)
    labels = list(dict.fromkeys(curve.label for own in found.values() for curve in own))
    for (left, right), one in zip(panels, sets, strict=True):
        for curve in found[one.name]:
            i = labels.index(curve.label)
            for panel, values in ((left, "losses"), (right, "values")):
                _line(panel, curve, values, i)
        for panel, name in ((left, LOSSES[kinds[one.name]]), (right, f"validation {one.metric}")):
            drawing.label(panel, "steps", name, one.name)
    drawn = drawing.handles(panels.flat)
    ordered = {label: drawn[label] for label in labels if label in drawn}
    drawing.legend(figure, ordered, 1 if max(map(len, ordered)) > 40 else min(2, len(ordered)))
    return figure


def _line(panel: Any, curve: Curve, values: str, number: int) -> None:
    colour = drawing.colour(number)
    steps = [point.step for point in curve.points]
    each = [getattr(point, values) for point in curve.points]
    dots = {"marker": drawing.marker(number), "markersize": 3.5} if len(steps) <= 30 else {}
    panel.plot(steps, [fmean(v) for v in each], color=colour, lw=1.5, label=curve.label, **dots)
    if max(map(len, each)) > 1:
        panel.fill_between(steps, [min(v) for v in each], [max(v) for v in each], color=colour, alpha=0.18, lw=0)
