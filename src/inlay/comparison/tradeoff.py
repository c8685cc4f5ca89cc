"""Quality against trained parameters: figures 1 and 3 of Houlsby et al. (2019).

The horizontal axis is what one more task adds to the model, by its logarithm; the vertical one is the metric minus that
of a reference, full fine-tuning in the paper, on the same dataset. Over several datasets a line goes through the medians,
and what it is drawn with spans the 20th to the 80th percentile. A family of one size is a marker, one without
trained parameters (a baseline) a dashed line across.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from inlay import drawing
from inlay.errors import RunError
from inlay.metrics import LOWER_IS_BETTER

PERCENTILES = (20.0, 50.0, 80.0)
_BASELINE = "#7F7F7F"
_DASHES = ("--", ":", "-.")


class Point(NamedTuple):
    """One method on one dataset."""

    family: str
    """Methods that differ in size alone, such as `houlsby`: one line."""
    method: str
    """The spec."""
    parameters: int | None
    """Trained for one task; None for what is no method on the base, such as the majority class."""
    dataset: str
    value: float
    baseline: float
    """The reference's value on the same dataset."""


class Place(NamedTuple):
    """One method over all datasets, relative to the reference."""

    method: str
    parameters: float | None
    """The mean, should they differ between datasets."""
    low: float
    middle: float
    high: float
    datasets: int


def places(points: Sequence[Point]) -> dict[str, list[Place]]:
    """Family -> its methods from small to large, with percentiles over datasets: exactly what is drawn."""
    found: dict[str, dict[str, list[Point]]] = {}
    for point in map(Point._make, points):
        if math.isfinite(point.value) and math.isfinite(point.baseline):
            found.setdefault(point.family, {}).setdefault(point.method, []).append(point)
    made = {family: [_place(name, own) for name, own in methods.items()] for family, methods in found.items()}
    return {family: sorted(own, key=lambda place: place.parameters or 0) for family, own in made.items()}


def draw(
    points: Sequence[Point], *, metric: str = "metric", reference: str = "full fine-tuning", title: str = ""
) -> Any:
    """A figure of `inlay.drawing.sheet`.

    Args:
        points: Points, or plain tuples (family, method, parameters, dataset, value, baseline).
        metric: what the values are; those of which more is better are shown times 100, as points.
        reference: what the baseline values are, in words.
    """
    families = places(points)
    if not families:
        raise RunError("there is nothing to plot: no method has a value")
    figure, axes = drawing.sheet(width=6.0, height=4.2)
    panel = axes[0, 0]
    scale = 1.0 if metric in LOWER_IS_BETTER else 100.0
    is_band = max(place.datasets for own in families.values() for place in own) > 1
    trained = {family: own for family, own in families.items() if own[0].parameters is not None}
    across = [family for family in families if family not in trained]
    panel.axhline(0, color="black", lw=0.8, alpha=0.6)
    for i, (family, own) in enumerate(trained.items()):
        _family(panel, i, family, own, scale, is_band)
    for i, family in enumerate(across):
        level, name = scale * families[family][0].middle, families[family][0].method
        panel.axhline(level, color=_BASELINE, lw=1.2, ls=_DASHES[i % len(_DASHES)], label=name)
    if trained:
        panel.set_xscale("log")
    unit = " (points)" if scale != 1 else ""
    panel.set_xlabel("trained parameters per task")
    panel.set_ylabel(f"{metric} relative to {reference}{unit}")
    if title:
        panel.set_title(title, fontsize=10)
    drawing.plain(panel)
    shown = dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    names = [own[0].method if len(own) == 1 else family for family, own in (trained | families).items()]
    how = {"loc": "outside lower center", "ncols": min(4, len(names)), "frameon": False, "fontsize": 9}
    figure.legend([shown[name] for name in names], names, **how)
    return figure


def _family(panel: Any, i: int, family: str, own: Sequence[Place], scale: float, is_band: bool) -> None:
    colour, marker = drawing.COLOURS[i % len(drawing.COLOURS)], drawing.MARKERS[i % len(drawing.MARKERS)]
    x = [max(1.0, place.parameters or 1.0) for place in own]  # a method without any has no logarithm
    low, middle, high = ([scale * getattr(place, name) for place in own] for name in ("low", "middle", "high"))
    if len(own) == 1:
        name = own[0].method
        spread = [[middle[0] - low[0]], [high[0] - middle[0]]] if is_band else None
        panel.errorbar(x, middle, spread, fmt=marker, color=colour, capsize=3, markersize=6, lw=1.2, label=name)
        return
    panel.plot(x, middle, marker=marker, color=colour, lw=1.6, markersize=5, label=family)
    if is_band:
        panel.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


def _place(method: str, points: Sequence[Point]) -> Place:
    differences = sorted(point.value - point.baseline for point in points)
    counts = [point.parameters for point in points if point.parameters is not None]
    low, middle, high = (percentile(differences, p) for p in PERCENTILES)
    return Place(method, sum(counts) / len(counts) if counts else None, low, middle, high, len(points))


def percentile(values: Sequence[float], p: float) -> float:
    """Between the two nearest of sorted values, in a straight line: numpy's default."""
    at = (len(values) - 1) * p / 100
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])
