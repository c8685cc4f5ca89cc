"""A sweep as a picture: the metric against every key that varies, a line for every method.

A line goes through the best setting at each value, with the spread over its seeds; all other settings are faint dots,
which show how much the other keys matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inlay import drawing, metrics
from inlay.errors import RunError
from inlay.sweeps.values import is_number, shown

if TYPE_CHECKING:
    from inlay.sweeps.table import Entry, Sweep

_LOG = 3
"""Numbers that differ by this factor are drawn on a logarithmic axis."""
_APART = 0.008
"""The distance between lines, as a part of the width."""
_FEW = 6
"""Up to this many values have a tick each."""
_MOST = 4
"""Panels in a row."""


def write_plot(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """The metric against every key that varies, in the format that the file's ending names."""
    if not sweep.ranking:
        raise RunError("there is nothing to plot: no run has finished")
    keys = [key for key in sweep.keys if key != "method"] or ["method"]
    columns = min(_MOST, len(keys))
    rows = -(-len(keys) // columns)
    figure, axes = drawing.sheet(rows, columns, sharey=True)
    for i, panel in enumerate(axes.flat):
        if i < len(keys):
            _panel(panel, sweep, keys[i])
        else:
            panel.set_visible(False)
        if i % columns == 0:
            panel.set_ylabel(f"validation {sweep.metric}")
    lines = drawing.handles(axes.flat)  # a panel lacks methods that lack its key
    if "method" in sweep.keys and keys != ["method"]:
        drawing.legend(figure, lines, min(4, len(lines)))
    drawing.write(figure, path)


def _panel(panel: Any, sweep: Sweep, key: str) -> None:
    entries = [entry for entry in sweep.ranking if key in entry.setting]
    place, ticks = _places(entries, key)
    is_log = ticks is None and min(place.values()) > 0 and max(place.values()) >= _LOG * min(place.values())
    in_order = sorted(sweep.ranking, key=lambda entry: min(row.position for row in entry.runs))
    methods = list(dict.fromkeys(entry.setting["method"] for entry in in_order))
    lines = {"": entries} if key == "method" else {m: [e for e in entries if e.setting["method"] == m] for m in methods}
    for i, (method, points) in enumerate(lines.items()):  # a method has one colour in all panels
        if not points:
            continue
        colour = drawing.colour(i)
        x = _beside(place, i - (len(lines) - 1) / 2, is_log)
        panel.plot([x[_key(e, key)] for e in points], [e.mean for e in points], ".", color=colour, alpha=0.25)
        best = _best_at(points, key, sweep.metric)
        line = "" if key == "method" or isinstance(best[0].setting[key], str) else "-"
        marker = drawing.marker(i)
        style = {"fmt": marker + line, "color": colour, "label": method, "capsize": 3, "markersize": 5, "lw": 1.5}
        panel.errorbar([x[_key(e, key)] for e in best], [e.mean for e in best], [e.std or 0.0 for e in best], **style)
    _scale(panel, place, ticks, is_log)
    panel.set_xlabel(key)
    drawing.plain(panel)


def _beside(place: Mapping[str, float], line: float, is_log: bool) -> dict[str, float]:
    """Places for one of several lines, which would otherwise hide one another."""
    low, high = min(place.values()), max(place.values())
    if is_log:
        return {name: x * (high / low) ** (_APART * line) for name, x in place.items()}
    return {name: x + (high - low or 1.0) * _APART * line for name, x in place.items()}


def _scale(panel: Any, place: Mapping[str, float], names: Sequence[str] | None, is_log: bool) -> None:
    if names is not None:
        panel.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 8 else 0)
        panel.set_xlim(-0.5, len(names) - 0.5)
        return
    if is_log:
        panel.set_xscale("log")
    values = sorted(set(place.values()))
    if len(values) <= _FEW:  # the values themselves
        panel.set_xticks(values, [shown(int(v) if v == int(v) else v) for v in values])
        panel.minorticks_off()


def _places(entries: Sequence[Entry], key: str) -> tuple[dict[str, float], list[str] | None]:
    """Where values go on the axis; and their names, unless they are numbers."""
    distinct = list({_key(entry, key): entry.setting[key] for entry in entries}.items())
    if all(is_number(value) for _, value in distinct):
        return {name: float(value) for name, value in distinct}, None
    return {name: float(i) for i, (name, _) in enumerate(distinct)}, [name for name, _ in distinct]


def _best_at(entries: Sequence[Entry], key: str, metric: str) -> list[Entry]:
    """The best setting at each value, from left to right."""
    best: dict[str, Entry] = {}
    for entry in entries:
        other = best.get(_key(entry, key))
        if other is None or metrics.better(metric, entry.mean, other.mean):
            best[_key(entry, key)] = entry
    numbers: Mapping[str, float] = _places(entries, key)[0]
    return sorted(best.values(), key=lambda entry: numbers[_key(entry, key)])


def _key(entry: Entry, key: str) -> str:
    return shown(entry.setting[key], key)
