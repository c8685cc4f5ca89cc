"""Labels that `datasets` stores as numbers, turned back into their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def label_names(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Column -> the names of its labels, from what `Features.to_dict` writes."""
    return {column: names for column, feature in features.items() if (names := _names(feature))}


def named(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The row with names instead of numbers; a label of -1, which means none, is left out."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        if key not in names:
            cells[key] = value
        elif isinstance(value, list):
            cells[key] = [_name(label, names[key]) for label in value]
        elif value is not None and value != -1:
            cells[key] = _name(value, names[key])
    return cells


def _names(feature: Any) -> Sequence[str]:
    """The names of a ClassLabel, or of the ClassLabels in a list."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, Mapping):
        return ()
    if feature.get("_type") != "ClassLabel":
        return _names(feature.get("feature"))
    return names if isinstance(names := feature.get("names"), list) else ()


def _name(value: Any, names: Sequence[str]) -> Any:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
