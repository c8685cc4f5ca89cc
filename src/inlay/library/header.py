"""The header of a safetensors file, checked before tensors are read.

A file is 8 bytes with the length of its header, the header (JSON), and the tensors. The length may be anything, so it
is compared with the size of the file first; pickles, archives and web pages are refused here too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from inlay.errors import AdapterError

LIMIT = 16 * 1024 * 1024
"""Bytes of the longest header: enough for about a hundred thousand tensors and their card."""
_NOT_OURS = {
    b"\x80": "a Python pickle, which Inlay never opens",
    b"PK": "a zip archive, as PyTorch's own files are; Inlay never opens pickles",
    b"\x93NUMPY": "a NumPy file",
    b"\x1f\x8b": "compressed; Inlay's files are not",
    b"<": "a page, not a file of tensors",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself",
}


def metadata_of(content: bytes, source: object) -> dict[str, Any]:
    """The header's texts; an error if it is not a header, is too long, or does not fit the file."""
    if len(content) < 8:
        raise _wrong(source, f"it has {len(content)} bytes")
    length = int.from_bytes(content[:8], "little")
    if length > LIMIT or length > len(content) - 8:
        known = next((what for start, what in _NOT_OURS.items() if content.startswith(start)), None)
        most = min(LIMIT, len(content) - 8)
        raise _wrong(source, f"it is {known}" if known else f"its header claims {length:,} bytes of at most {most:,}")
    try:
        header = json_object(content[8 : 8 + length], _once)
    except ValueError as error:
        raise _wrong(source, f"its header cannot be read: {error}") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _wrong(source, "its metadata is not an object")
    end = max((_end(source, name, tensor) for name, tensor in header.items()), default=0)
    if end != len(content) - 8 - length:
        raise _wrong(source, f"its tensors take {end:,} bytes, and the file has {len(content) - 8 - length:,} for them")
    return metadata


def card_of(content: bytes, source: object) -> dict[str, Any]:
    """The card in the header of one of Inlay's files."""
    text = metadata_of(content, source).get("inlay")
    if not isinstance(text, str):
        raise AdapterError(f"{source} is a safetensors file, but not one of Inlay's")
    try:
        return json_object(text)
    except ValueError as error:
        raise AdapterError(f"{source} has a damaged card: {error}") from None


def json_object(content: str | bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> dict[str, Any]:
    """An object from its JSON; a ValueError says what is wrong with it."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - as what json raises
    return value


def _end(source: object, name: str, tensor: Any) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(o) is int and o >= 0 for o in offsets):
        raise _wrong(source, f"its header does not say where {name} is")
    return int(offsets[1])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is there twice")
    return fields


def _wrong(source: object, what: str) -> AdapterError:
    return AdapterError(f"{source} is not an adapter: {what}")
