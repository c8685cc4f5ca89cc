"""Output for people: a console on which control characters are visible, and plain tables. Without rich, plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from inlay.untrusted import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GAP = 3
"""Spaces between two columns of a table."""


def counted(number: int, noun: str) -> str:
    """1 row, 1,000 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """A console on which texts from files cannot move the cursor or change colours: all that is printed, also in
    tables, passes through `render_str`.
    """
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(visible(text), **options)

    return Screen(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)


class Lines:
    """Replaces a console where rich is not installed."""

    is_terminal = is_jupyter = False
    width, height = 120, 40

    def print(self, text: object = "", **options: Any) -> None:
        """One line on stderr."""
        sys.stderr.write(f"{visible(str(text))}\n")


def console_or_lines() -> Console | Lines:
    """For programs that are not ours: a console on stderr, or plain lines without rich."""
    try:
        return console(stderr=True)
    except ImportError:
        return Lines()


def table(*columns: str, right: Sequence[str] = (), keep: Sequence[str] = ()) -> Table:
    """A plain table; columns in `right` hold numbers; neither these nor those in `keep` are folded."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        grid.add_column(name, justify=justify, no_wrap=name in (*right, *keep), overflow="fold")
    return grid
