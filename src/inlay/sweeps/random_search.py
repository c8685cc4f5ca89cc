"""Random search: distinct combinations, drawn from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from inlay.errors import RunError
from inlay.sweeps.grid import MOST, Setting, Space
from inlay.sweeps.values import Range, Values, is_number

_MISSES = 1000
"""After this many draws in a row without a new setting there is none left."""


def draw(space: Space, count: int, seed: int) -> list[Setting]:
    """`count` different combinations; more draws with the same seed begin with the same ones."""
    source = random.Random(f"sweep {seed}")
    if space.size is not None and space.size <= MOST:
        settings = list(space.settings())
        source.shuffle(settings)
        _refuse(count, len(settings))
        return settings[:count]
    drawn: dict[str, Setting] = {}
    misses = 0
    while len(drawn) < count:
        setting = _draw_one(space, source)
        key = json.dumps(setting, sort_keys=True)
        misses = misses + 1 if key in drawn else 0
        if misses > _MISSES:
            _refuse(count, len(drawn))
        drawn.setdefault(key, setting)
    return list(drawn.values())


def largest(space: Space) -> list[Setting]:
    """For every method its combination with the largest numbers: what memory must hold."""

    def top(values: Values) -> Any:
        if isinstance(values, Range):
            return values.high
        return max(filter(is_number, values), default=values[0])

    return [{"method": branch.method, **{a.key: top(a.values) for a in branch.axes}} for branch in space.branches]


def _draw_one(space: Space, source: random.Random) -> Setting:
    branch = source.choice(space.branches)
    setting: Setting = {"method": branch.method}
    for axis in branch.axes:
        setting[axis.key] = axis.values.draw(source) if isinstance(axis.values, Range) else source.choice(axis.values)
    return setting


def _refuse(count: int, available: int) -> None:
    if count > available:
        raise RunError(f"{count} different combinations were requested, but there are only {available}")
