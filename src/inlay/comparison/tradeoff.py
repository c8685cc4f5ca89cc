"""Quality against trained parameters: figures 1 and 3 of Houlsby et al. (2019).

The horizontal axis shows how many parameters another task adds, on a logarithmic scale; the vertical one shows the
metric minus that of a reference, full fine-tuning in the paper, on the same dataset. Over several datasets a line goes
through the medians, and the band around it spans the 20th to the 80th percentile. A family of one size is a marker; one
without trained parameters (a baseline) is a dashed line across.
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
    """A method on a dataset."""

    family: str
    """Methods that only differ in size, such as `houlsby`, and are one line."""
    method: str
    """The spec."""
    parameters: int | None
    """Trained for a task; None for a baseline, such as the majority class."""
    dataset: str
    value: float
    baseline: float
    """The reference's value on the same dataset."""


class Place(NamedTuple):
    """A method over all datasets, relative to the reference."""

    method: str
    parameters: float | None
    """The mean, if they differ between datasets."""
    low: float
    middle: float
    high: float
    datasets: int


def family(spec: str) -> str:
    """A spec without the options of its size: `houlsby:size=8,where=ffn` -> `houlsby:where=ffn`."""
    return without(parse(spec), SIZES)


def without(method: Method, options: Collection[str]) -> str:
    """A method's spec without some of its options."""
    name, values = config.split_spec(method.spec)
    rest = ",".join(f"{key}={value}" for key, value in values.items() if key not in options)
    return f"{name}:{rest}" if rest else name


def places(points: Sequence[Point]) -> dict[str, list[Place]]:
    """Family -> its methods from small to large, with percentiles over datasets: exactly what is drawn."""
    families: dict[str, dict[str, list[Point]]] = {}
    for point in map(Point._make, points):
        if math.isfinite(point.value) and math.isfinite(point.baseline):
            families.setdefault(point.family, {}).setdefault(point.method, []).append(point)
    unsorted = {name: [_place(*item) for item in methods.items()] for name, methods in families.items()}
    return {name: sorted(line, key=lambda place: place.parameters or 0) for name, line in unsorted.items()}


def draw(
    points: Sequence[Point], *, metric: str = "metric", reference: str = "full fine-tuning", title: str = ""
) -> Any:
    """A figure of `inlay.drawing.sheet`.

    Args:
        points: Points, or plain tuples (family, method, parameters, dataset, value, baseline).
        metric: the name of the values; if more is better, they are shown in points, times 100.
        reference: the name of the baseline values.
    """
    families = places(points)
    if not families:
        raise RunError("there is nothing to plot: no method has a value")
    figure, panel = drawing.single(width=6.0, height=4.2)
    scale = 1.0 if metric in LOWER_IS_BETTER else 100.0
    is_band = max(place.datasets for line in families.values() for place in line) > 1
    trained = {name: line for name, line in families.items() if line[0].parameters is not None}
    across = [line for name, line in families.items() if name not in trained]
    panel.axhline(0, color="black", lw=0.8, alpha=0.6)
    for i, (name, line) in enumerate(trained.items()):
        _draw_family(panel, i, name, line, scale, is_band)
    for i, line in enumerate(across):
        level, name = scale * line[0].middle, line[0].method
        panel.axhline(level, color=_BASELINE, lw=1.2, ls=_DASHES[i % len(_DASHES)], label=name)
    if trained:
        panel.set_xscale("log")
    unit = " (points)" if scale != 1 else ""
    drawing.label(panel, "trained parameters per task", f"{metric}\nrelative to {reference}{unit}", title)
    shown = drawing.handles([panel])
    names = [line[0].method if len(line) == 1 else name for name, line in (trained | families).items()]
    drawing.legend(figure, {name: shown[name] for name in names}, min(4, len(names)))
    return figure


def _draw_family(panel: Any, i: int, name: str, line: Sequence[Place], scale: float, is_band: bool) -> None:
    colour, marker = drawing.colour(i), drawing.marker(i)
    x = [max(1.0, place.parameters or 1.0) for place in line]  # a method without any has no logarithm
    low, middle, high = ([scale * getattr(place, name) for place in line] for name in ("low", "middle", "high"))
    if len(line) == 1:
        spread = [[middle[0] - low[0]], [high[0] - middle[0]]] if is_band else None
        panel.errorbar(
            x, middle, spread, fmt=marker, color=colour, capsize=3, markersize=6, lw=1.2, label=line[0].method
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
    """Interpolated between the two nearest of sorted values: numpy's default."""
    at = (len(values) - 1) * p / 100
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])
