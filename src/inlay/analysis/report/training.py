"""The course of a training: its losses and its deciding metric, which the adapter's file keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inlay import drawing

History = Sequence[Mapping[str, Any]]


def evaluations(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The evaluations that measured the deciding metric."""
    history, metric = about.get("history"), about.get("metric")
    listed = history if isinstance(history, list) else []
    return [e for e in listed if isinstance(e, Mapping) and metric in (e.get("metrics") or {}) and "step" in e]


def draw_losses(history: History) -> Any:
    """The loss of training rows, and of validation rows if it is known."""
    figure, panel = _sheet("loss")
    lines = (("loss", "training rows", 1, "--"), ("validation_loss", "validation rows", 0, "-"))
    for key, label, i, style in lines:
        points = [(e["step"], e[key]) for e in history if isinstance(e.get(key), int | float)]
        if points:
            panel.plot(*zip(*points, strict=True), style, color=drawing.COLOURS[i], lw=1.6, label=label, marker=".")
    drawing.legend(figure, drawing.handles([panel]), 2)
    return figure


def draw_metric(history: History, metric: str, best: int | None) -> Any:
    """The metric on validation rows; a ring marks the state that was kept."""
    figure, panel = _sheet(f"validation {metric}")
    steps, values = [e["step"] for e in history], [e["metrics"][metric] for e in history]
    panel.plot(steps, values, color=drawing.COLOURS[0], lw=1.6, marker=".", label=metric)
    if best in steps:
        ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "ls": "", "color": drawing.COLOURS[1]}
        panel.plot([best], [values[steps.index(best)]], **ring, label="kept")
        drawing.legend(figure, drawing.handles([panel]), 2)
    return figure


def _sheet(name: str) -> tuple[Any, Any]:
    figure, panel = drawing.single(width=4.0, height=2.6)
    drawing.label(panel, "steps", name)
    return figure, panel
