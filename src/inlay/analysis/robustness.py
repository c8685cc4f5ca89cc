"""How much a result depends on learning rate and seed: box plots (He et al. 2021, figure 4).

A box holds the runs of a method at one learning rate; right of the line, all runs of a method. Runs with different
numbers of training rows have separate panels. Boxes go from the first quartile to the third, whiskers to the furthest
run within one and a half times that; all others are dots. A run that failed, for example because its loss was not
finite, has no value and is counted at the bottom: a method that fails is not robust.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, by_train_size, data_sets, lr_of, method_of
from inlay.errors import RunError
from inlay.sweeps.store import Row
from inlay.sweeps.values import shown

_FIVE = ("low", "first quartile", "median", "third quartile", "high")
COLUMNS = ("data", "method", "lr", "runs", "failed", *_FIVE, "split")
_REACH = 1.5
_ALL = None
"""The learning rate of a box of all runs."""


@dataclass(frozen=True)
class Box:
    """The runs of a method at one learning rate, or at all of them."""

    method: str
    lr: float | None
    values: tuple[float, ...]
    failed: int

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """First, median and third, by linear interpolation."""
        if len(self.values) == 1:
            return (self.values[0],) * 3
        first, median, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, median, third

    @property
    def whiskers(self) -> tuple[float, float]:
        """The lowest and highest values that are not far out; never inside the box."""
        first, _, third = self.quartiles
        reach = _REACH * (third - first)
        inside = [value for value in self.values if first - reach <= value <= third + reach]
        return min(*inside, first), max(*inside, third)

    @property
    def outside(self) -> list[float]:
        """Values beyond the whiskers."""
        low, high = self.whiskers
        return [value for value in self.values if not low <= value <= high]


def robustness(rows: Sequence[Row]) -> Finding:
    """Box plots over learning rates and seeds, for every data set and method; of test rows if all runs have them."""
    sets = by_train_size(data_sets(rows))
    boxes_of = {data.name: _boxes(data) for data in sets}
    if all(len(box.values) < 2 for boxes in boxes_of.values() for box in boxes):
        raise RunError("a box needs two runs or more; sweep with several seeds or learning rates")
    lines = [_row(data, box) for data in sets for box in boxes_of[data.name]]
    summary: dict[str, Any] = {}
    for name, boxes in boxes_of.items():
        for box in boxes:
            if box.lr is _ALL and box.values:
                first, median, third = box.quartiles
                failed = f", {box.failed} failed" if box.failed else ""
                summary[f"{name}: {box.method}"] = f"median {median:.4f}, quartiles {first:.4f} to {third:.4f}{failed}"
    about = ", ".join(f"{data.name}: {len(_ended(data))} runs, {data.split} {data.metric}" for data in sets)
    return Finding("robustness", about, COLUMNS, lines, lambda: _draw(sets, boxes_of), summary)


def _ended(data: DataSet) -> list[Row]:
    return [row for row in data.rows if row.state in ("done", "failed")]


def _boxes(data: DataSet) -> list[Box]:
    ended = _ended(data)
    methods = list(dict.fromkeys(method_of(row).spec for row in ended))
    rates = sorted({lr_of(row) for row in ended})
    boxes = []
    for method in methods:
        of_method = [row for row in ended if method_of(row).spec == method]
        for lr in [*rates, _ALL]:
            at_rate = [row for row in of_method if lr is _ALL or lr_of(row) == lr]
            done = [row for row in at_rate if row.state == "done" and row.value is not None]
            if at_rate:
                boxes.append(Box(method, lr, data.values(done), len(at_rate) - len(done)))
    return boxes


def _row(data: DataSet, box: Box) -> tuple[Any, ...]:
    five = (None,) * 5 if not box.values else (box.whiskers[0], *box.quartiles, box.whiskers[1])
    lr = "all" if box.lr is _ALL else box.lr
    return (data.name, box.method, lr, len(box.values), box.failed, *five, data.split)


def _draw(sets: Sequence[DataSet], boxes_of: dict[str, list[Box]]) -> Any:
    most_rates = max(len({box.lr for box in boxes}) for boxes in boxes_of.values())
    methods = list(dict.fromkeys(box.method for boxes in boxes_of.values() for box in boxes))
    width = max(4.2, 0.8 + most_rates * (0.2 + 0.25 * len(methods)))
    figure, panels = drawing.sheet(1, len(sets), width=width, height=3.4)
    handles: dict[str, Any] = {}
    for panel, data in zip(panels.flat, sets, strict=True):
        boxes = boxes_of[data.name]
        rates: list[float | None] = [*sorted({box.lr for box in boxes if box.lr is not None}), _ALL]
        for i, method in enumerate(methods):
            of_method = [box for box in boxes if box.method == method]
            drawn = _draw_boxes(panel, of_method, rates, i, len(methods))
            handles |= {method: drawn} if drawn is not None else {}
        panel.set_xticks(range(len(rates)), ["all" if lr is _ALL else _rate_label(lr) for lr in rates])
        panel.axvline(len(rates) - 1.5, color="#999999", lw=0.8)
        panel.set_xlim(-0.6, len(rates) - 0.4)
        drawing.label(panel, "learning rate", f"{data.split} {data.metric}", data.name)
        panel.margins(y=0.12)  # room for the counts of failures
    drawing.legend(figure, handles, 3, size=10)
    return figure


def _draw_boxes(panel: Any, boxes: Sequence[Box], rates: Sequence[float | None], number: int, methods: int) -> Any:
    colour = drawing.colour(number)
    wide = 0.8 / methods
    aside = (number - (methods - 1) / 2) * wide
    handle = None
    for box in boxes:
        x = rates.index(box.lr) + aside
        if box.failed:
            style = {"ha": "center", "va": "bottom", "fontsize": 7, "color": colour}
            panel.text(x, 0.01, f"{box.failed} ✕", transform=panel.get_xaxis_transform(), **style)
        if not box.values:
            continue
        first, median, third = box.quartiles
        low, high = box.whiskers
        shape = {"med": median, "q1": first, "q3": third, "whislo": low, "whishi": high, "fliers": box.outside}
        line = {"color": colour}
        drawn = panel.bxp(
            [shape],
            positions=[x],
            widths=wide * 0.8,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
            medianprops={"color": colour, "lw": 2},
            whiskerprops=line,
            capprops=line,
            flierprops={"marker": ".", "markersize": 4, "markeredgecolor": colour},
            manage_ticks=False,
        )
        handle = handle or drawn["boxes"][0]
    return handle


def _rate_label(lr: float) -> str:
    return f"{lr:.0e}".replace("e-0", "e-") if float(f"{lr:.0e}") == lr else shown(lr)
