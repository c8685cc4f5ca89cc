"""Text that comes from files, where something might act on it: a terminal, or a spreadsheet."""

from __future__ import annotations

import re
from typing import Any

_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tabs and ends of lines, separators that are ends of lines to some, and turns of direction."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets take them for = + - @


def visible(text: str) -> str:
    r"""A text whose control characters are shown (`\x1b`), so that a terminal does not obey them."""
    return _ACTED_ON.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def one_line(text: object) -> str:
    """Text on one line, without what a terminal would act on."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def cell(value: Any) -> Any:
    """A cell of a table that no spreadsheet takes for a formula: an apostrophe goes before what looks like one."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
