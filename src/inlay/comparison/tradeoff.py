"""Quality against trained parameters: figures 1 and 3 of Houlsby et al. (2019).

The horizontal axis is what one more task adds to the model, by its logarithm; the vertical one is the metric minus
that of a reference, full fine-tuning in the paper, on the same dataset. Over several datasets a line goes through the
medians, and the band around it spans the 20th to the 80th percentile. A family of one size is a marker; one without
trained parameters (a baseline) is a dashed line across.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from inlay import config, drawing
from inlay.bank.delta import Method, parse
from inlay.errors import RunError
from inlay.metrics import LOWER_IS_BETTER

PERCENTILES = (20.0, 50.0, 80.0)
SIZES = frozenset({"size", "rank", "top", "target"})
"""Options that make a method larger or smaller, and nothing else."""
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


def family(spec: str) -> str:
    """A spec without what says how large it is: `houlsby:size=8,where=ffn` -> `houlsby:where=ffn`."""
    return without(parse(spec), SIZES)


def without(method: Method, options: Collection[str]) -> str:
    """A method's spec without some of its options: what different sizes of it have in common."""
    name, have = config.split_spec(method.spec)
    rest = ",".join(f"{key}={value}" for key, value in have.items() if key not in options)
    return f"{name}:{rest}" if rest else name


def places(points: Sequence[Point]) -> dict[str, list[Place]]:
    """Family -> its methods from small to large, with percentiles over datasets: exactly what is drawn."""
    found: dict[str, dict[str, list[Point]]] = {}
    for point in map(Point._make, points):
        if math.isfinite(point.value) and math.isfinite(point.baseline):
            found.setdefault(point.family, {}).setdefault(point.method, []).append(point)
    made = {name: [_place(method, own) for method, own in methods.items()] for name, methods in found.items()}
    return {name: sorted(own, key=lambda place: place.parameters or 0) for name, own in made.items()}


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
    figure, panel = drawing.single(width=6.0, height=4.2)
    scale = 1.0 if metric in LOWER_IS_BETTER else 100.0
    is_band = max(place.datasets for own in families.values() for place in own) > 1
    trained = {name: own for name, own in families.items() if own[0].parameters is not None}
    across = [own for name, own in families.items() if name not in trained]
    panel.axhline(0, color="black", lw=0.8, alpha=0.6)
    for i, (name, own) in enumerate(trained.items()):
        _family(panel, i, name, own, scale, is_band)
    for i, own in enumerate(across):
        level, name = scale * own[0].middle, own[0].method
        panel.axhline(level, color=_BASELINE, lw=1.2, ls=_DASHES[i % len(_DASHES)], label=name)
    if trained:
        panel.set_xscale("log")
    unit = " (points)" if scale != 1 else ""
    drawing.label(panel, "trained parameters per task", f"{metric}\nrelative to {reference}{unit}", title)
    shown = drawing.handles([panel])
    names = [own[0].method if len(own) == 1 else name for name, own in (trained | families).items()]
    drawing.legend(figure, {name: shown[name] for name in names}, min(4, len(names)))
    return figure


def _family(panel: Any, i: int, name: str, own: Sequence[Place], scale: float, is_band: bool) -> None:
    colour, marker = drawing.colour(i), drawing.marker(i)
    x = [max(1.0, place.parameters or 1.0) for place in own]  # a method without any has no logarithm
    low, middle, high = ([scale * getattr(place, name) for place in own] for name in ("low", "middle", "high"))
    if len(own) == 1:
        spread = [[middle[0] - low[0]], [high[0] - middle[0]]] if is_band else None
        panel.errorbar(
            x, middle, spread, fmt=marker, color=colour, capsize=3, markersize=6, lw=1.2, label=own[0].method
        )
        return
    panel.plot(x, middle, marker=marker, color=colour, lw=1.6, markersize=5, label=name)
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
