"""Rows as a few flat arrays, and back: what is kept of them in memory and on disk.

A row's ids are then a window (a memoryview) on all ids, of 4 bytes each: it is a sequence of integers as a list is, and
a batch of windows is put together several times faster than one of lists (see `Batch.of`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, overload

from inlay.tasks import Row

Values = Mapping[str, "array[Any] | memoryview"]


class Tuples(Sequence[tuple[int, ...]]):
    """A list of tuples of one width, made when first looked at: most rows' positions never are."""

    __slots__ = ("_flat", "_list", "_width")

    def __init__(self, flat: memoryview, width: int):
        self._flat, self._width = flat, width
        self._list: list[tuple[int, ...]] | None = None

    def _all(self) -> list[tuple[int, ...]]:
        if self._list is None:
            numbers = iter(self._flat.tolist())
            self._list = list(zip(*[numbers] * self._width, strict=True))
        return self._list

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._flat) // self._width

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, Tuples) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())


def pack(rows: Sequence[Row]) -> dict[str, array[Any]] | None:
    """Everything in these rows as arrays; None if a target or a position is of a form that arrays do not have."""
    ids = _numbers([token for row in rows for token in row.ids])
    target, aux = (_column(name, [getattr(row, name) for row in rows]) for name in ("target", "aux"))
    typed = [row.types for row in rows if row.types is not None]
    if ids is None or ids.typecode != "i" or target is None or aux is None:
        return None
    if 0 < len(typed) < len(rows):
        typed = [bytes(len(row.ids)) if row.types is None else row.types for row in rows]
    arrays = {"ids": ids, "ends": _ends(row.ids for row in rows), "example": array("q", (row.example for row in rows))}
    try:
        return arrays | ({"types": array("B", chain.from_iterable(typed))} if typed else {}) | target | aux
    except OverflowError:
        return None


def unpack(values: Values) -> list[Row]:
    """The rows again; ids and types are read-only windows."""
    ends = values["ends"]
    ids = _windows(values["ids"], ends)
    types = _windows(values["types"], ends) if "types" in values else [None] * len(ids)
    columns = (_values(name, values, len(ids)) for name in ("target", "aux"))
    target, aux = columns
    return list(map(Row, ids, types, target, values["example"].tolist(), aux))


def portable(rows: Sequence[Row]) -> dict[str, array[Any]] | list[Row]:
    """Rows in a form that can leave this process, which windows cannot."""
    plain = [
        Row(
            list(row.ids),
            None if row.types is None else list(row.types),
            row.target,
            row.example,
            list(row.aux) if isinstance(row.aux, Tuples) else row.aux,
        )
        for row in rows
    ]
    return pack(plain) or plain


def arrived(rows: Values | Sequence[Row]) -> list[Row]:
    """The rows that `portable` was given."""
    return unpack(rows) if isinstance(rows, Mapping) else list(rows)


def _column(name: str, values: Sequence[Any]) -> dict[str, array[Any]] | None:
    """Values of rows as arrays whose names say their form: target, target:list, aux:list:3 ..."""
    kinds = set(map(type, values))
    if kinds <= {type(None)}:
        return {}
    if kinds not in ({list}, {tuple}):
        return _named(name, values)
    form, flat = f"{name}:{kinds.pop().__name__}", list(chain.from_iterable(values))
    if flat and set(map(type, flat)) == {tuple}:
        widths = set(map(len, flat))
        if form.endswith("tuple") or len(widths) != 1 or widths == {0}:
            return None
        form, flat = f"{form}:{widths.pop()}", list(chain.from_iterable(flat))
    arrays = _named(form, flat)
    return None if arrays is None else arrays | {f"{name}.ends": _ends(values)}


def _named(name: str, values: Sequence[Any]) -> dict[str, array[Any]] | None:
    numbers = _numbers(values)
    return None if numbers is None else {name: numbers}


def _numbers(values: Sequence[Any]) -> array[Any] | None:
    """Integers, narrow if they fit, or floats; None if they are something else."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return array("d", values)
    if not kinds <= {int}:
        return None
    for code in "iq":
        try:
            return array(code, values)
        except OverflowError:
            continue
    return None


def _ends(values: Iterator[Any] | Sequence[Any]) -> array[int]:
    return array("q", accumulate(map(len, values)))


def _windows(flat: array[Any] | memoryview, ends: array[Any] | memoryview, width: int = 1) -> list[memoryview]:
    view = memoryview(flat).toreadonly()
    return [view[a * width : b * width] for a, b in pairwise([0, *ends.tolist()])]


def _values(name: str, values: Values, rows: int) -> Sequence[Any]:
    """A value for every row."""
    key = next((k for k in values if k == name or k.startswith(f"{name}:")), None)
    if key is None:
        return [None] * rows
    if key == name:
        return values[name].tolist()
    _, kind, *width = key.split(":")
    ends = values[f"{name}.ends"]
    if width:
        return [Tuples(window, int(width[0])) for window in _windows(values[key], ends, int(width[0]))]
    flat = values[key].tolist()
    parts = (flat[a:b] for a, b in pairwise([0, *ends.tolist()]))
    return list(parts) if kind == "list" else list(map(tuple, parts))
