"""A file's digest: the file is known by its content, under another name or on another machine."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from typing import Any


def digest(path: str) -> dict[str, Any] | None:
    """Bytes and SHA-256 of a plain file; None for anything else."""
    try:
        stat = os.stat(path)
        return {"bytes": stat.st_size, "sha256": _hash(path, stat.st_mtime_ns)} if os.path.isfile(path) else None
    except OSError:
        return None


def is_same(path: str, known: Any) -> bool:
    """Whether a file has this digest; a file of another size is not read."""
    if not isinstance(known, Mapping) or not os.path.isfile(path) or os.path.getsize(path) != known.get("bytes"):
        return False
    return digest(path) == dict(known)


@functools.lru_cache(maxsize=16)  # the runs of a sweep read the same file
def _hash(path: str, time: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
