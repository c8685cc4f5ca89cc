"""The metric against a number that varies: the common part of `size` and `init`.

A line goes through the best setting at each value, chosen by its mean over seeds on validation, with the spread over
its seeds; the other settings at that value are faint dots. The learning rate of the chosen setting stands beside it.
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
"""Up to this many values have a tick each."""


@dataclass(frozen=True)
class Axis:
    """The option that varies."""

    kind: str
    options: tuple[str, ...]
    """Options of methods; the first that a method has counts."""
    label: str
    base: int
    """The base of the logarithm."""


def metric_vs_option(rows: Sequence[Row], axis: Axis) -> Finding:
    """The metric against an option of methods, for every data set and method in these rows."""
    sets = data_sets(rows)
    entries_of = {data.name: _entries(data, axis) for data in sets}
    sets = [data for data in sets if entries_of[data.name]]
    if not sets:
        named = " or ".join(axis.options)
        raise RunError(f"no method in this sweep has the option {named}; vary it, as in --grid {axis.options[0]}=...")
    few = [data.name for data in sets if len({e.setting["value"] for e in entries_of[data.name]}) < 2]
    if len(few) == len(sets):
        value = shown(entries_of[few[0]][0].setting["value"])
        raise RunError(f"all runs have {axis.options[0]}={value}: there is nothing to plot it against")
    lines = [line for data in sets for line in _rows(data.name, entries_of[data.name])]
    columns = tuple(_COLUMNS.replace("OPTION", axis.options[0]).split())
    summary: dict[str, Any] = {}
    for data in sets:
        top = entries_of[data.name][0]
        at = f"{axis.options[0]}={shown(top.setting['value'])} lr={shown(top.setting['lr'])}"
        summary |= {f"{data.name}: best": f"{top.setting['method']} {at}", f"{data.name}: {data.metric}": top.mean}
    about = f"{' and '.join(f'{data.name} ({len(data.done)} runs)' for data in sets)}, on validation rows"
    return Finding(axis.kind, about, columns, lines, lambda: _draw(sets, entries_of, axis), summary)


def _entries(data: DataSet, axis: Axis) -> list[Entry]:
    def setting(row: Row) -> dict[str, Any] | None:
        method = method_of(row)
        name, value = option_of(method, axis.options) or ("", None)
        if not value or value < 0:  # zero has no logarithm
            return None
        return {**data.setting(row), "method": without(method, [name]), "value": value}

    return data.entries(setting)


def _rows(data: str, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
    best = best_of(entries, "method", "value")
    order = sorted(entries, key=lambda e: (e.setting["method"], e.setting["value"], e.setting["lr"]))
    lines = []
    for entry in order:
        method, value = entry.setting["method"], entry.setting["value"]
        others = " ".join(f"{k}={shown(v, k)}" for k, v in entry.setting.items() if k not in _SETTING)
        values = [row.value for row in entry.runs if row.value is not None]
        spread = (entry.mean, entry.std, min(values), max(values))
        is_chosen = best[method, value] is entry
        statistics = (len(values), *spread, is_chosen, entry.parameters, entry.test)
        lines.append((data, method, value, entry.setting["lr"], others, *statistics))
    return lines


def _draw(sets: Sequence[DataSet], entries_of: dict[str, list[Entry]], axis: Axis) -> Any:
    figure, panels = drawing.sheet(1, len(sets), width=4.8, height=3.4)
    methods = list(dict.fromkeys(e.setting["method"] for entries in entries_of.values() for e in entries))
    for panel, data in zip(panels.flat, sets, strict=True):
        entries = entries_of[data.name]
        for i, method in enumerate(methods):
            _draw_line(panel, [e for e in entries if e.setting["method"] == method], i, len(methods) == 1)
        values = sorted({e.setting["value"] for e in entries})
        panel.set_xscale("log", base=axis.base)
        if len(values) <= _TICKS:
            panel.set_xticks(values, [_tick_label(v) for v in values])
            panel.minorticks_off()
        rates = " (numbers: the best learning rate)" if panel.texts else ""
        drawing.label(panel, axis.label + rates, f"validation {data.metric}", data.name)
        panel.margins(x=0.06, y=0.14)
    if len(methods) > 1:
        drawing.legend(figure, drawing.handles(panels.flat), min(3, len(methods)), size=10)
    return figure


def _draw_line(panel: Any, entries: Sequence[Entry], number: int, alone: bool) -> None:
    if not entries:
        return
    colour = drawing.colour(number)
    best = sorted(best_of(entries, "value").values(), key=lambda e: e.setting["value"])
    rest = [e for e in entries if e not in best]
    panel.plot([e.setting["value"] for e in rest], [e.mean for e in rest], ".", color=colour, alpha=0.35)
    style = {"color": colour, "capsize": 3, "markersize": 5, "lw": 1.5, "label": entries[0].setting["method"]}
    x, y = [e.setting["value"] for e in best], [e.mean for e in best]
    panel.errorbar(x, y, [e.std or 0.0 for e in best], fmt=drawing.marker(number) + "-", **style)
    if alone and len({e.setting["lr"] for e in entries}) > 1:
        for entry in best:
            at = (entry.setting["value"], entry.mean + (entry.std or 0.0))
            text = f"{entry.setting['lr']:.0e}".replace("e-0", "e-")
            style = {"textcoords": "offset points", "ha": "center", "fontsize": 7, "color": "#555555"}
            panel.annotate(text, at, (0, 5), **style)


def _tick_label(value: float) -> str:
    if value >= 1:
        return f"{value:g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"
