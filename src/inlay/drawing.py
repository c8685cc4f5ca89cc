"""Pictures with matplotlib, without its global state, in colours that colour-blind people can tell apart.

All pictures of sweeps, comparisons and analyses are made with these functions, so that they look alike.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from inlay.errors import RunError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's, without yellow, which is hard to see on white."""
MARKERS = "osD^vP*X<>"
BALANCE = "PuOr"
"""The colour map from below zero to above it."""


def sheet(rows: int = 1, columns: int = 1, width: float = 4.2, height: float = 3.6, **shared: Any) -> tuple[Any, Any]:
    """A figure, and its panels as an array of rows and columns.

    Args:
        width, height: of one panel, in inches.
        shared: `sharex`, `sharey` of matplotlib's `subplots`.
    """
    figure = plotting("matplotlib.figure").Figure(
        figsize=(width * columns + 0.6, height * rows + 0.4), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def single(width: float, height: float) -> tuple[Any, Any]:
    """A figure of one panel, and that panel."""
    figure, panels = sheet(width=width, height=height)
    return figure, panels[0, 0]


def colour(number: int) -> str:
    """The colour of the line with this number; after the last colour the first comes again."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """The marker of the line with this number."""
    return MARKERS[number % len(MARKERS)]


def label(panel: Any, x: str, y: str = "", title: str = "", grid: bool = True) -> None:
    """Set the titles of a panel, and make it plain."""
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(title, fontsize=10)
    plain(panel, grid)


def handles(panels: Iterable[Any]) -> dict[str, Any]:
    """Label -> what panels have drawn under it; a label of several panels is there once."""
    by_label: dict[str, Any] = {}
    for panel in panels:
        by_label |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    return by_label


def legend(figure: Any, by_label: Mapping[str, Any], columns: int, size: int = 9, where: str = "lower") -> None:
    """A legend of these labels, below all panels or (`upper`) above them."""
    options = {"loc": f"outside {where} center", "ncols": columns, "frameon": False, "fontsize": size}
    figure.legend(list(by_label.values()), list(by_label), **options)


def plain(panel: Any, grid: bool = True) -> None:
    """A faint grid, and no frame above and on the right."""
    if grid:
        panel.grid(alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def write(figure: Any, *paths: str | os.PathLike[str]) -> None:
    """Write a figure in the formats that the files' endings name; the same figure gives the same bytes."""
    with plotting("matplotlib").rc_context({"svg.hashsalt": "inlay"}):
        for path in paths:
            try:
                figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)
            except (OSError, ValueError) as error:
                raise RunError(f"cannot write {path}: {error}") from None


def plotting(module: str) -> Any:
    """A module of matplotlib; an error if that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise RunError("a picture needs matplotlib: pip install 'inlay[plots]'") from None
