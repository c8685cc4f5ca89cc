"""Arrays kept on disk: a safetensors file per key, mapped into memory when it is asked for.

A file is written under another name and then moved into place, so that readers and other writers see all of it or
nothing. It holds a hash of itself; a damaged one counts as missing. The least recently used files go when there is
more than ROOM. No failure here is an error: a cache that cannot be read or written only costs time.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import time
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from inlay.base.caches import folder

ROOM = 2 << 30
"""Bytes of all files together."""
_DTYPES = {"q": "I64", "d": "F64", "i": "I32", "B": "U8"}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LEFT = 24 * 3600
"""Seconds after which a file that is still being written has been left behind by a process that died."""

Arrays = dict[str, memoryview]
"""One-dimensional and read-only, of the formats q, d, i and B."""


def read(kind: str, key: str) -> Arrays | None:
    """The arrays of a key, as windows on their file; None if there are none, or only damaged ones."""
    place = folder(kind)
    if place is None:
        return None
    file = place / f"{key}.safetensors"
    try:
        with file.open("rb") as opened:
            arrays = _parse(memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    with suppress(OSError):
        os.utime(file)  # it has been used
    return arrays


def write(kind: str, key: str, arrays: Mapping[str, array[Any] | memoryview]) -> None:
    """Keep arrays under a key, instead of what it had."""
    place = folder(kind)
    views = {name: memoryview(a) for name, a in arrays.items()}
    if place is None or sum(v.nbytes for v in views.values()) > ROOM:
        return
    part = ""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds what people have written
        number, part = tempfile.mkstemp(".part", dir=place)
        with open(number, "wb") as file:
            file.writelines(_pieces(views))
        os.replace(part, place / f"{key}.safetensors")
        _make_room(place)
    except OSError:
        with suppress(OSError):
            os.unlink(part)


def _pieces(views: Mapping[str, memoryview]) -> Iterable[bytes | memoryview]:
    """A safetensors file: the length of its header, the header, the arrays, wide ones first so that all are aligned."""
    table: dict[str, Any] = {}
    at = 0
    order = sorted(views, key=lambda name: (-views[name].itemsize, name))
    for name in order:
        view = views[name]
        table[name] = {"dtype": _DTYPES[view.format], "shape": [len(view)], "data_offsets": [at, at + view.nbytes]}
        at += view.nbytes
    data = [views[name].cast("B") for name in order if len(views[name])]
    header = json.dumps({"__metadata__": {"blake2b": _hash(table, data)}, **table}).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *data]


def _parse(file: memoryview) -> Arrays:
    """The arrays of a file; ValueError, KeyError, TypeError or AttributeError if it is not one, or not what it was."""
    begin = 8 + int.from_bytes(file[:8], "little")
    table = json.loads(bytes(file[8:begin]))
    if table.pop("__metadata__")["blake2b"] != _hash(table, [file[begin:]]):
        raise ValueError("the file has changed")
    spans = {name: slice(*(begin + at for at in entry["data_offsets"])) for name, entry in table.items()}
    return {name: file[span].cast(_CODES[table[name]["dtype"]]) for name, span in spans.items()}  # type: ignore[call-overload]


def _hash(table: Mapping[str, Any], data: Iterable[memoryview]) -> str:
    digest = hashlib.blake2b(json.dumps(table, sort_keys=True).encode(), digest_size=16)
    for piece in data:
        digest.update(piece)
    return digest.hexdigest()


def _make_room(place: Path) -> None:
    """Remove the least recently used files, and what dead writers left. Other processes may do so at the same time."""
    kept = []
    for file in place.iterdir():
        with suppress(OSError):
            stat = file.stat()
            if file.suffix == ".safetensors":
                kept.append((stat.st_mtime_ns, stat.st_size, file))
            elif file.suffix == ".part" and time.time() - stat.st_mtime > _LEFT:
                file.unlink()
    total = sum(size for _, size, _ in kept)
    for _, size, file in sorted(kept):
        if total <= ROOM:
            return
        with suppress(OSError):
            file.unlink()
        total -= size
