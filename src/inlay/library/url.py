"""A library at a URL, through fsspec: `s3://bucket/prefix`, `gs://...`, `memory://x`.

What holds depends on the store:

- S3 and other object stores write an object whole or not at all, and create one only if its name is free (S3 through
  `If-None-Match`), so a library is as safe there as in a folder. A store that accepts that header and ignores it is
  not: of two writers that take the same number within a moment, the later one wins.
- `memory://` is one process, with a lock.
- Any other file system (sftp, smb, ...) cannot create exclusively through fsspec. Files are written beside their place
  and renamed, so none is seen half-written, but only one writer at a time may add versions to the same name.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import datetime
from typing import Any
from uuid import uuid4

from inlay.errors import DamagedError, LibraryError, first_line
from inlay.library.storage import PART, File

_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "memory"})
"""Stores where an object appears when it is complete."""
_MEMORY = threading.Lock()
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
_TRIES = 20


class Url:
    """A place that fsspec can open."""

    def __init__(self, url: str):
        try:
            from fsspec.core import url_to_fs

            self.fs, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            hint = "; pip install 'inlay[s3]'" if url.startswith("s3") else ""
            raise LibraryError(f"{url} cannot be opened: {error}{hint}") from None
        self.url, self.root = url.rstrip("/"), str(root).rstrip("/")
        kinds = {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        self.whole = bool(kinds & _WHOLE)
        self.lock = _MEMORY if "memory" in kinds else None

    def where(self, path: str) -> str:
        """The full URL, for people."""
        return f"{self.url}/{path}"

    def read(self, path: str, limit: int | None = None) -> bytes:
        """A file's content; a file of more than `limit` bytes is refused before it is read."""
        if limit is not None:
            size = self._try("read", path, self.fs.info, self._full(path)).get("size")
            if size is not None and size > limit:
                raise self._too_long(path, limit)
        return bytes(self._try("read", path, self.fs.cat_file, self._full(path)))

    def read_all(self, paths: Iterable[str], limit: int) -> dict[str, bytes | LibraryError]:
        """Many small files at once; missing ones are left out."""
        wanted = list(dict.fromkeys(paths))
        full = [self._full(path) for path in wanted]
        ends = [limit + 1] * len(full)
        contents = self._try("read", "", self.fs.cat_ranges, full, [0] * len(full), ends, on_error="return")
        results: dict[str, bytes | LibraryError] = {}
        for path, content in zip(wanted, contents, strict=True):
            if isinstance(content, FileNotFoundError):
                continue
            if isinstance(content, BaseException):
                results[path] = LibraryError(f"cannot read {self.where(path)}: {first_line(content)}")
            else:
                results[path] = bytes(content) if len(content) <= limit else self._too_long(path, limit)
        return results

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file; False if the path is taken."""
        if self.stat(path) is not None:
            return False
        if not self.whole:
            self.replace(path, content)
            return True
        for attempt in range(_TRIES):
            try:
                with self.lock or nullcontext():
                    self.fs.pipe_file(self._full(path), content, mode="create")
                return True
            except FileExistsError:
                return False
            except Exception as error:
                if getattr(error, "errno", None) != errno.EBUSY or attempt == _TRIES - 1:
                    raise LibraryError(f"cannot write {self.where(path)}: {first_line(error)}") from None
                time.sleep(0.05)  # another is creating the same object at this moment
        raise AssertionError("unreachable")

    def replace(self, path: str, content: bytes) -> None:
        """Write a file, also over an existing one."""
        full = self._full(path)
        if self.whole:
            self._try("write", path, self.fs.pipe_file, full, content)
            return
        folder, _, _ = full.rpartition("/")
        part = f"{folder}/{PART}{uuid4().hex}"
        self._try("write", path, self.fs.makedirs, folder, exist_ok=True)
        try:
            self._try("write", path, self.fs.pipe_file, part, content)
            self._try("write", path, self.fs.mv, part, full)
        except LibraryError:
            if self.fs.exists(part):
                self.fs.rm_file(part)
            raise

    def list(self, folder: str, parts: bool = False) -> list[File]:
        """All files below a folder; none if there is no such folder."""
        try:
            infos = self._try("read", folder, self.fs.find, self._full(folder), detail=True)
        except FileNotFoundError:
            return []
        files = [self._file(info) for info in infos.values() if info.get("type") != "directory"]
        return [file for file in files if parts or not file.path.rpartition("/")[2].startswith(PART)]

    def stat(self, path: str) -> File | None:
        """One file, or None."""
        try:
            info = self._try("read", path, self.fs.info, self._full(path))
        except FileNotFoundError:
            return None
        return self._file(info) if info.get("type") != "directory" else None

    def remove(self, path: str) -> None:
        """Delete a file; nothing happens if it is not there."""
        try:
            self._try("delete", path, self.fs.rm_file, self._full(path))
        except FileNotFoundError:
            return

    def move(self, old: str, new: str) -> None:
        """Rename a file, also over an existing one."""
        if not self.whole:
            folder, _, _ = self._full(new).rpartition("/")
            self._try("write", new, self.fs.makedirs, folder, exist_ok=True)
        self._try("move", old, self.fs.mv, self._full(old), self._full(new))

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _file(self, info: dict[str, Any]) -> File:
        name = str(self.fs._strip_protocol(info["name"]))
        return File(name[len(self.root) + 1 :], int(info.get("size") or 0), _modified(info))

    def _too_long(self, path: str, limit: int) -> DamagedError:
        return DamagedError(f"{self.where(path)} is damaged: it has more bytes than the {limit:,} that are right")

    def _try(self, what: str, path: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a file system; an error of its client becomes a LibraryError, except that of a missing file."""
        try:
            return call(*arguments, **options)
        except FileNotFoundError as missing:
            if what != "write":
                raise
            raise LibraryError(f"cannot {what} {self.where(path)}: {first_line(missing)}") from None
        except Exception as other:  # clients raise errors of any kind: network, credentials, permission
            raise LibraryError(f"cannot {what} {self.where(path)}: {first_line(other)}") from None


def _modified(info: dict[str, Any]) -> float:
    """When a file was written; one of unknown age counts as new, so that it is never deleted for its age."""
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return time.time()
