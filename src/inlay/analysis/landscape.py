"""The loss along the straight line through start and end of a training (He et al. 2021, figure 6; Hao et al. 2019).

    f(a) = L(theta_0 + a (theta_1 - theta_0))     theta_0 before training, theta_1 after it, the head's included

theta_0 is never stored: initial values follow from the method, the base's shape and the seed on the card. All points of
an adapter are slots of the same batches; those of a weight-level adapter run one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.rows import deciding, rows_of
from inlay.analysis.variants import loaded_variants
from inlay.bank import sparse
from inlay.bank.delta import WeightMethod
from inlay.engine.evaluate import outputs_of, score
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.tasks import Example, Row

_AT_ONCE = 1 << 30
"""The most bytes of adapters that are loaded at once."""
_ENDS = {0.0: "start", 1.0: "trained"}


@dataclass(frozen=True)
class Point:
    """A place on the line."""

    a: float
    loss: float
    metric: float


def landscape(
    host: Host,
    names: Sequence[str],
    examples: Sequence[Example],
    *,
    points: int = 20,
    reach: float = 2.0,
    metric: str | None = None,
    where: str = "",
) -> Finding:
    """Loss and metric of adapters on the line from their initial to their trained parameters, and beyond.

    Args:
        names: adapters that all know these examples' labels.
        points: how many, at equal distances from -reach to reach; start and end of the training are added.
        metric: the first adapter's deciding metric by default.
        where: a name for the examples, for people.
    """
    if points < 2 or reach <= 0:
        raise RunError(f"a line needs at least 2 points and a reach above 0, not {points} and {reach:g}")
    metric = deciding(host, names[0], metric)
    rows = {name: rows_of(host, name, examples, targets=True) for name in names}
    for name in names[1:]:
        deciding(host, name, metric)
    places = sorted({-reach + 2 * reach * i / (points - 1) for i in range(points)} | set(_ENDS))
    lines = {name: along(host, name, rows[name], examples, places, metric) for name in names}
    summary: dict[str, Any] = {"metric": metric}
    for name, line in lines.items():
        prefix = f"{name}: " if len(names) > 1 else ""
        point_at = {point.a: point for point in line}
        lowest = min(line, key=lambda point: point.loss)
        summary |= {f"{prefix}loss at the start": point_at[0.0].loss, f"{prefix}loss when trained": point_at[1.0].loss}
        summary |= {f"{prefix}{metric} when trained": point_at[1.0].metric, f"{prefix}lowest loss at a": lowest.a}
    measured = f"{len(examples):,} rows{f' ({where})' if where else ''}"
    return Finding(
        "landscape",
        f"loss of {', '.join(names)} on {measured}, along the line from initial to trained parameters",
        ("adapter", "a", "loss", metric, "mark"),
        [(name, p.a, p.loss, p.metric, _ENDS.get(p.a, "")) for name, line in lines.items() for p in line],
        lambda: _draw(lines, metric),
        summary,
    )


def along(
    host: Host, name: str, rows: Sequence[Row], examples: Sequence[Example], places: Sequence[float], metric: str
) -> list[Point]:
    """Loss and metric at these places on an adapter's line."""
    record, end = host.fitted(host.adapter(name))
    start = record.initial(host.base)
    fixed = {n for n, p in record.params(host.base).items() if p.role != "trained"}
    moving = {n: (start.get(n), t) for n, t in end.items() if t.is_floating_point() and n not in fixed}
    size = sum(t.nbytes for t in end.values())
    at_once = 1 if isinstance(record.method, WeightMethod) else max(1, _AT_ONCE // size)
    task, measured = host.task(name), []
    for i in range(0, len(places), at_once):
        chunk = places[i : i + at_once]
        moved = [end | {n: _between(n, *ends, a) for n, ends in moving.items()} for a in chunk]
        with loaded_variants(host, {f"{name} {i}": (record, tensors) for i, tensors in enumerate(moved)}) as names:
            outputs = outputs_of(host, [(variant, rows) for variant in names])
        for a, out in zip(chunk, outputs, strict=True):
            with torch.no_grad():
                loss = float(task.loss([o.to(host.base.device) for o in out], rows, host.base))
            measured.append(Point(a, loss, score(host, name, examples, rows, out)[metric]))
    return measured


def _between(name: str, start: Tensor | None, end: Tensor, a: float) -> Tensor:
    """theta_0 + a (theta_1 - theta_0); a sparse tensor is a difference from the base, which is zero at the start."""
    if start is None:
        if not name.endswith(sparse.VALUE):
            raise RunError(f"it is unknown where {name} started")
        return a * end
    return torch.lerp(start.to(end.device, end.dtype), end, a)


def _draw(lines: Mapping[str, Sequence[Point]], metric: str) -> Any:
    figure, panels = drawing.sheet(1, 2, width=4.2, height=3.2)
    for panel, label, value in ((panels[0, 0], "loss", "loss"), (panels[0, 1], metric, "metric")):
        for at in _ENDS:
            panel.axvline(at, color="#7F7F7F", lw=0.8, ls=":")
        for i, (name, line) in enumerate(lines.items()):
            style = {"color": drawing.colour(i), "lw": 1.5, "markersize": 3.5}
            marker = drawing.marker(i)
            panel.plot([p.a for p in line], [getattr(p, value) for p in line], marker=marker, label=name, **style)
        drawing.label(panel, "a   (0: before training, 1: trained)", label)
    drawing.legend(figure, drawing.handles([panels[0, 0]]), min(4, len(lines)), where="upper")
    return figure
