"""Settings of other libraries: an unknown one, or one that Inlay has no equal of, is refused and never skipped."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from inlay.errors import AdapterError


def refuse(options: Mapping[str, Any], refused: Mapping[str, str], harmless: Collection[str], path: Path) -> None:
    """Refuse options that are set.

    Args:
        refused: option -> why an adapter that sets it cannot be represented.
        harmless: options that are read elsewhere, or do not change the outputs of a trained adapter.
    """
    for key, reason in refused.items():
        if options.get(key):
            raise AdapterError(f"{path}: {key}={_brief(options[key])} cannot be represented: {reason}")
    known = {*refused, *harmless}
    unknown = next((key for key, value in options.items() if value and key not in known), None)
    if unknown is not None:
        raise AdapterError(f"{path}: the setting {unknown!r} is not known, and may change what the adapter does")


def number(value: object, key: str, path: Path) -> float:
    """A finite number."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        pass
    raise AdapterError(f"{path}: {key} is {_brief(value)}, not a number")


def short(value: float) -> float | int:
    """A number without the noise of its last digits."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
