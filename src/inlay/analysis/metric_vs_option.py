"""The metric against one number that varies: what `size` and `init` have in common.

A line goes through the best setting at each value, chosen by its mean over seeds on validation, with the spread over
its seeds; the other settings at that value are faint dots. The learning rate of the chosen one stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, best_of, data_sets, method_of, option_of
from inlay.comparison.tradeoff import without
from inlay.errors import RunError
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry
from inlay.sweeps.values import shown

_COLUMNS = "data method OPTION lr settings seeds mean std low high chosen parameters test"
_SETTING = ("method", "lr", "value")
_TICKS = 9
"""Values that have a tick each."""


@dataclass(frozen=True)
class Axis:
    """What varies."""

    kind: str
    options: tuple[str, ...]
    """Of methods; the first that a method has."""
    label: str
    base: int
    """Of the logarithm."""


def metric_vs_option(rows: Sequence[Row], axis: Axis) -> Finding:
    """The metric against an option of methods, for every data set and method in these rows."""
    sets = data_sets(rows)
    found = {one.name: _entries(one, axis) for one in sets}
    sets = [one for one in sets if found[one.name]]
    if not sets:
        named = " or ".join(axis.options)
        raise RunError(f"no method in this sweep has the option {named}; vary it, as in --grid {axis.options[0]}=...")
    few = [name for name, own in found.items() if 0 < len({e.setting["value"] for e in own}) < 2]
    if len(few) == len(sets):
        value = shown(next(e.setting["value"] for e in found[few[0]]))
        raise RunError(f"all runs have {axis.options[0]}={value}: there is nothing to plot it against")
    lines = [line for one in sets for line in _rows(one.name, found[one.name])]
    columns = tuple(_COLUMNS.replace("OPTION", axis.options[0]).split())
    summary: dict[str, Any] = {}
    for one in sets:
        top = found[one.name][0]
        at = f"{axis.options[0]}={shown(top.setting['value'])} lr={shown(top.setting['lr'])}"
        summary |= {f"{one.name}: best": f"{top.setting['method']} {at}", f"{one.name}: {one.metric}": top.mean}
    about = f"{' and '.join(f'{one.name} ({len(one.done)} runs)' for one in sets)}, on validation rows"
    return Finding(axis.kind, about, columns, lines, lambda: _draw(sets, found, axis), summary)


def _entries(one: DataSet, axis: Axis) -> list[Entry]:
    def setting(row: Row) -> dict[str, Any] | None:
        method = method_of(row)
        name, value = option_of(method, axis.options) or ("", None)
        if not value or value < 0:  # zero has no logarithm
            return None
        return {**one.setting(row), "method": without(method, [name]), "value": value}

    return one.entries(setting)


def _rows(data: str, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
    best = best_of(entries, "method", "value")
    order = sorted(entries, key=lambda e: (e.setting["method"], e.setting["value"], e.setting["lr"]))
    lines = []
    for entry in order:
        method, value = entry.setting["method"], entry.setting["value"]
        more = " ".join(f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k not in _SETTING)
        values = [row.value for row in entry.runs if row.value is not None]
        spread = (entry.mean, entry.std, min(values), max(values))
        is_chosen = best[method, value] is entry
        told = (len(values), *spread, is_chosen, entry.parameters, entry.test)
        lines.append((data, method, value, entry.setting["lr"], more, *told))
    return lines


def _draw(sets: Sequence[DataSet], found: dict[str, list[Entry]], axis: Axis) -> Any:
    figure, panels = drawing.sheet(1, len(sets), width=4.8, height=3.4)
    methods = list(dict.fromkeys(e.setting["method"] for own in found.values() for e in own))
    for panel, one in zip(panels.flat, sets, strict=True):
        own = found[one.name]
        for i, method in enumerate(methods):
            _line(panel, [e for e in own if e.setting["method"] == method], i, len(methods) == 1)
        values = sorted({e.setting["value"] for e in own})
        panel.set_xscale("log", base=axis.base)
        if len(values) <= _TICKS:
            panel.set_xticks(values, [_tick(v) for v in values])
            panel.minorticks_off()
        rates = " (numbers: the best learning rate)" if panel.texts else ""
        drawing.label(panel, axis.label + rates, f"validation {one.metric}", one.name)
        panel.margins(x=0.06, y=0.14)
    if len(methods) > 1:
        drawing.legend(figure, drawing.handles([panels.flat[0]]), min(3, len(methods)), size=10)
    return figure


def _line(panel: Any, entries: Sequence[Entry], number: int, alone: bool) -> None:
    if not entries:
        return
    colour = drawing.colour(number)
    best = sorted(best_of(entries, "value").values(), key=lambda e: e.setting["value"])
    rest = [e for e in entries if e not in best]
    panel.plot([e.setting["value"] for e in rest], [e.mean for e in rest], ".", color=colour, alpha=0.35)
    how = {"color": colour, "capsize": 3, "markersize": 5, "lw": 1.5, "label": entries[0].setting["method"]}
    x, y = [e.setting["value"] for e in best], [e.mean for e in best]
    panel.errorbar(x, y, [e.std or 0.0 for e in best], fmt=drawing.marker(number) + "-", **how)
    if alone and len({e.setting["lr"] for e in entries}) > 1:
        for entry in best:
            at = (entry.setting["value"], entry.mean + (entry.std or 0.0))
            text = f"{entry.setting['lr']:.0e}".replace("e-0", "e-")
            how = {"textcoords": "offset points", "ha": "center", "fontsize": 7, "color": "#555555"}
            panel.annotate(text, at, (0, 5), **how)


def _tick(value: float) -> str:
    if value >= 1:
        return f"{value:g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"
