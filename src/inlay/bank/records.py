"""Records of arrays: built on the host, packed into one buffer, and copied to the device at once.

A record is a frozen dataclass of type `Record`. Its arrays travel, also those of records in it; `host` fields stay on
the host; anything else is a mode. A recording depends on the modes and on the arrays' shapes (`shape_of`), never on the
numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from inlay.data.batch import Array

A = TypeVar("A", Array, Tensor)
"""What a record's numbers are: arrays on the host, tensors on a device."""
_FIELDS: dict[type, tuple[str, ...]] = {}
_MODES = {type(None), int, bool, float, str}
"""Types without arrays in them; checking them first is faster."""
_ALIGNED = 32
"""In numbers of 4 bytes: every array starts at a multiple of 128 bytes."""


class Record:
    """A frozen dataclass of arrays, other records, and modes."""


def host(**options: Any) -> Any:
    """A field that stays on the host; no recording depends on it."""
    return dataclasses.field(**options, metadata={"host": True})


def shape_of(record: Any) -> Hashable:
    """What a recording of work on this record depends on."""
    if isinstance(record, np.ndarray):
        return record.shape, record.dtype.char
    if type(record) is tuple and record and isinstance(record[0], Record | np.ndarray):
        return tuple(map(shape_of, record))
    if names := _travelling(type(record)):
        return tuple([shape_of(getattr(record, name)) for name in names])
    return record  # type: ignore[no-any-return]


def pack(record: Any) -> Tensor:
    """All numbers of a record in one int32 buffer, in page-locked memory where a GPU will read it."""
    arrays = list(_arrays(record))
    buffer = torch.empty(sum(_room(a.size) for a in arrays), dtype=torch.int32, pin_memory=torch.cuda.is_available())
    flat, at = buffer.numpy(), 0
    for array in arrays:
        flat[at : at + array.size] = _narrow(array).reshape(-1).view(np.int32)
        at += _room(array.size)
    return buffer


def unpack(record: Any, buffer: Tensor) -> Any:
    """The same record, its arrays now views of a buffer that `pack` has filled."""
    at = 0

    def view(array: Array) -> Tensor:
        nonlocal at
        numbers = buffer[at : at + array.size]
        at += _room(array.size)
        return (numbers.view(torch.float32) if array.dtype.kind == "f" else numbers).view(array.shape)

    return _replaced(record, view)


def on_device(record: Any, device: torch.device) -> Any:
    """The same record of tensors on a device: one copy to a GPU, none to the CPU."""
    if device.type == "cpu":
        return _replaced(record, lambda array: torch.from_numpy(_narrow(array)))
    with torch.cuda.device(device):  # page-locked memory belongs to the current device
        return unpack(record, pack(record).to(device, non_blocking=True))


def _replaced(record: Any, make: Callable[[Array], Tensor]) -> Any:
    if isinstance(record, np.ndarray):
        return make(record)
    if type(record) is tuple and record and isinstance(record[0], Record | np.ndarray):
        return tuple([_replaced(part, make) for part in record])
    if not (names := _travelling(type(record))):
        return record
    copy = object.__new__(type(record))
    copy.__dict__.update(record.__dict__)  # several times faster than dataclasses.replace, and there are many
    for name in names:
        if type(value := copy.__dict__[name]) not in _MODES:
            copy.__dict__[name] = _replaced(value, make)
    return copy


def _arrays(record: Any) -> Iterator[Array]:
    if isinstance(record, np.ndarray):
        yield record
    elif type(record) is tuple:
        for part in record:
            yield from _arrays(part)
    else:
        for name in _travelling(type(record)):
            yield from _arrays(getattr(record, name))


def _travelling(kind: type) -> tuple[str, ...]:
    """The fields of a record that are not `host` fields; none for other types."""
    names = _FIELDS.get(kind)
    if names is None:
        fields = dataclasses.fields(kind) if issubclass(kind, Record) else ()  # type: ignore[arg-type]
        names = _FIELDS[kind] = tuple(f.name for f in fields if not f.metadata.get("host"))
    return names


def _narrow(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else np.int32)


def _room(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
