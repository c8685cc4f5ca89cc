"""The values of one key: a list, or a range to draw from; and how values are read and shown."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay.errors import InlayError
from inlay.library import defaults

_DIGITS = 3
_LOG = 10
"""A range whose ends differ by this factor is drawn from on a logarithmic scale."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    whole: bool
    """Whether they are whole numbers."""

    @property
    def log(self) -> bool:
        """Whether every order of magnitude is as likely as the next."""
        return self.low > 0 and self.high >= _LOG * self.low

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends: a base must allow them."""
        return self.low, self.high

    def draw(self, source: random.Random) -> float:
        """A number; with three digits, so that what a table shows is what was run."""
        if self.log:
            drawn = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        elif self.whole:
            return source.randint(int(self.low), int(self.high))
        else:
            drawn = source.uniform(self.low, self.high)
        drawn = round(drawn) if self.whole else float(f"{drawn:.{_DIGITS}g}")
        return min(max(drawn, self.low), self.high)


Values = tuple[Any, ...] | Range


def read_values(key: str, raw: Any, read: Callable[[Any], Any], problems: list[str]) -> Values | None:
    """The typed values of a key; None, and lines added to `problems`, if they are not valid."""
    pieces = [piece.strip() for piece in raw.split(",")] if isinstance(raw, str) else _listed(raw)
    if not pieces or pieces == [""]:
        problems.append(f"{key} has no values")
        return None
    if "" in pieces:
        problems.append(f"{key} has an empty value")
        return None
    if any(isinstance(piece, str) and ".." in piece for piece in pieces):
        return _range(key, pieces, read, problems)
    values: list[Any] = []
    before = len(problems)
    for piece in pieces:
        try:
            value = read(piece)
        except InlayError as error:
            problems.append(str(error))
            continue
        if value in values:
            problems.append(f"{key} has {shown(value, key)} twice")
        values.append(value)
    return tuple(values) if len(problems) == before else None


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(raw: Any) -> list[Any]:
    return list(raw) if isinstance(raw, list | tuple) else [raw]


def _range(key: str, pieces: list[Any], read: Callable[[Any], Any], problems: list[str]) -> Range | None:
    if len(pieces) > 1:
        problems.append(f"{key} mixes a range and single values; give one range, or a list")
        return None
    low, _, high = (part.strip() for part in pieces[0].partition(".."))
    if not low or not high:
        problems.append(f"{key}={pieces[0]} is not a range: expected low..high")
        return None
    try:
        ends = (read(low), read(high))
    except InlayError as error:
        problems.append(str(error))
        return None
    if not all(map(is_number, ends)):
        problems.append(f"{key}={pieces[0]} is not a range: {key} is not a number")
        return None
    if not ends[0] < ends[1]:
        problems.append(f"{key}={pieces[0]} is an empty range: the lower end comes first")
        return None
    return Range(*ends, whole=all(isinstance(end, int) for end in ends))


def split_specs(raw: Any, problems: list[str]) -> list[str]:
    """A list of specs. Of `houlsby:size=8,init=0.1,adapterbias`, init belongs to the spec before it."""
    if not isinstance(raw, str):
        specs = [str(spec) for spec in _listed(raw)]
        if not specs:
            problems.append("method has no values")
        return specs
    specs = []
    for piece in (piece.strip() for piece in raw.split(",")):
        head, equals, _ = piece.partition("=")
        if equals and ":" not in head and specs:
            specs[-1] += f"{',' if ':' in specs[-1] else ':'}{piece}"
        else:
            specs.append(piece)
    if specs == [""]:
        problems.append("method has no values")
        return []
    if "" in specs:
        problems.append("method has an empty value")
    return [spec for spec in specs if spec]


def shown(value: Any, key: str = "") -> str:
    """A value as people read it, and as the command line takes it: a setting can be `none`, an option `auto`."""
    if value is None:
        return "none" if key in defaults.RUN | defaults.LATER else "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def short(value: Any, key: str = "") -> str:
    """As `shown`, but small numbers in their shorter form: 3e-4."""
    text = shown(value, key)
    if not isinstance(value, float) or not 0 < abs(value) < 1:
        return text
    digits, _, exponent = f"{value:.3e}".partition("e")
    return min(text, f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}", key=len)


def in_words(setting: Mapping[str, Any], keys: Sequence[str]) -> str:
    """What varies in a setting, as text; empty if nothing does."""
    words = [setting["method"]] if "method" in keys else []
    words += [f"{key}={shown(setting[key], key)}" for key in keys if key in setting and key != "method"]
    return " ".join(words)


def read_texts(texts: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`["lr=1e-3,1e-4", ...]` as a grid, and what is wrong with it."""
    grid: dict[str, str] = {}
    problems = []
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        key = key.replace("-", "_")
        if not equals or not key:
            problems.append(f"--grid {text!r} is not key=a,b,c")
        elif key in grid:
            problems.append(f"{key} is given twice; list all of its values once")
        else:
            grid[key] = values
    return grid, problems
