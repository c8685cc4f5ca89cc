"""Labels that `datasets` stores as numbers, turned back into their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def names_of(feature: Any) -> Sequence[str] | None:
    """The names of a ClassLabel, or of the ClassLabels in a list, as `Features.to_dict` writes them."""
    if isinstance(feature, list) and len(feature) == 1:
        return names_of(feature[0])
    if not isinstance(feature, Mapping):
        return None
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        return list(names) if names else None
    return names_of(feature.get("feature"))


def named(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The row with names instead of numbers; a label of -1, which means none, is left out."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if key not in names:
            found[key] = value
        elif isinstance(value, list):
            found[key] = [_name(one, names[key]) for one in value]
        elif value is not None and value != -1:
            found[key] = _name(value, names[key])
    return found


def _name(value: Any, names: Sequence[str]) -> Any:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
