"""How much a result depends on learning rate and seed: box plots (He et al. 2021, figure 4).

A box holds the runs of one method at one learning rate; beyond the line are all runs of a method together. Runs with
different numbers of training rows have panels of their own. Boxes go from the first quartile to the third, whiskers to
the furthest run within one and a half times that, the rest are dots. What failed, for example because its loss was not
finite, has no value and is counted beside the box: a method that fails is not robust.
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
"""In the place of a learning rate."""


@dataclass(frozen=True)
class Box:
    """The runs of one method at one learning rate, or at all of them."""

    method: str
    lr: float | None
    values: tuple[float, ...]
    failed: int

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """By linear interpolation."""
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
    """Box plots over learning rates and seeds, for every data set and method; on test rows where all runs have them."""
    sets = by_train_size(data_sets(rows))
    boxes = {one.name: _boxes(one) for one in sets}
    if all(len(box.values) < 2 for own in boxes.values() for box in own):
        raise RunError("a box needs two runs or more; sweep with several seeds or learning rates")
    lines = [_row(one, box) for one in sets for box in boxes[one.name]]
    summary: dict[str, Any] = {}
    for one in sets:
        for box in boxes[one.name]:
            if box.lr is _ALL and box.values:
                first, median, third = box.quartiles
                failed = f", {box.failed} failed" if box.failed else ""
                summary[f"{one.name}: {box.method}"] = (
                    f"median {median:.4f}, quartiles {first:.4f} to {third:.4f}{failed}"
                )
    about = ", ".join(f"{one.name}: {len(_ended(one))} runs, {one.split} {one.metric}" for one in sets)
    return Finding("robustness", about, COLUMNS, lines, lambda: _draw(sets, boxes), summary)


def _ended(one: DataSet) -> list[Row]:
    return [row for row in one.rows if row.state in ("done", "failed")]


def _boxes(one: DataSet) -> list[Box]:
    ended = _ended(one)
    methods = list(dict.fromkeys(method_of(row).spec for row in ended))
    rates = sorted({lr_of(row) for row in ended})
    found = []
    for method in methods:
        own = [row for row in ended if method_of(row).spec == method]
        for lr in [*rates, _ALL]:
            here = [row for row in own if lr is _ALL or lr_of(row) == lr]
            done = [row for row in here if row.state == "done" and row.value is not None]
            if here:
                found.append(Box(method, lr, one.values(done), len(here) - len(done)))
    return found


def _row(one: DataSet, box: Box) -> tuple[Any, ...]:
    five = (None,) * 5 if not box.values else (box.whiskers[0], *box.quartiles, box.whiskers[1])
    lr = "all" if box.lr is _ALL else box.lr
    return (one.name, box.method, lr, len(box.values), box.failed, *five, one.split)


def _draw(sets: Sequence[DataSet], boxes: dict[str, list[Box]]) -> Any:
    most = max(len({box.lr for box in own}) for own in boxes.values())
    methods = list(dict.fromkeys(box.method for own in boxes.values() for box in own))
    width = max(4.2, 0.8 + most * (0.2 + 0.25 * len(methods)))
    figure, panels = drawing.sheet(1, len(sets), width=width, height=3.4)
    handles: dict[str, Any] = {}
    for panel, one in zip(panels.flat, sets, strict=True):
        own = boxes[one.name]
        rates: list[float | None] = [*sorted({box.lr for box in own if box.lr is not None}), _ALL]
        for i, method in enumerate(methods):
            mine = [box for box in own if box.method == method]
            drawn = _method(panel, mine, rates, i, len(methods))
            handles |= {method: drawn} if drawn is not None else {}
        panel.set_xticks(range(len(rates)), ["all" if lr is _ALL else _rate(lr) for lr in rates])
        panel.axvline(len(rates) - 1.5, color="#999999", lw=0.8)
        panel.set_xlim(-0.6, len(rates) - 0.4)
        drawing.label(panel, "learning rate", f"{one.split} {one.metric}", one.name)
        panel.margins(y=0.12)  # room for the counts of failures
    drawing.legend(figure, handles, 3, size=10)
    return figure


def _method(panel: Any, boxes: Sequence[Box], rates: Sequence[float | None], number: int, of: int) -> Any:
    colour = drawing.colour(number)
    wide = 0.8 / of
    aside = (number - (of - 1) / 2) * wide
    handle = None
    for box in boxes:
        x = rates.index(box.lr) + aside
        if box.failed:
            how = {"ha": "center", "va": "bottom", "fontsize": 7, "color": colour}
            panel.text(x, 0.01, f"{box.failed} ✕", transform=panel.get_xaxis_transform(), **how)
        if not box.values:
            continue
        first, median, third = box.quartiles
        low, high = box.whiskers
        one = {"med": median, "q1": first, "q3": third, "whislo": low, "whishi": high, "fliers": box.outside}
        line = {"color": colour}
        drawn = panel.bxp(
            [one],
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


def _rate(lr: float) -> str:
    return f"{lr:.0e}".replace("e-0", "e-") if float(f"{lr:.0e}") == lr else shown(lr)
