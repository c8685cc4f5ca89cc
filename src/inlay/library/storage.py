"""What a library needs from a place: read, create, replace, list, remove, move.

Paths are relative, with `/`. A missing file is a FileNotFoundError, any other failure a LibraryError. A file is seen
whole or not at all, and if two writers create the same path, one learns that it is taken: all else rests on these two
promises. `Folder` keeps them through a kill and a power cut; a URL (`inlay.library.url`) as well as its store does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from inlay.errors import DamagedError, LibraryError

if TYPE_CHECKING:
    from inlay.library.url import Url

Storage: TypeAlias = "Folder | Url"
_NO_LINKS = frozenset((errno.EPERM, errno.EACCES, errno.EINVAL, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV))
"""Errors of systems that have no hard links, or none here."""
TAKEN = b'{"taken": true}\n'
"""The content of a file whose name is taken before its real content is there."""
PART = ".part-"
"""The prefix of files that are being written; a killed writer leaves them behind."""


class File(NamedTuple):
    """One stored file."""

    path: str
    size: int
    modified: float
    """Seconds since 1970."""


def open_storage(root: str) -> tuple[str, Storage]:
    """The place of a folder or URL, and its plain name."""
    if root.startswith("file://"):
        root = unquote(urlsplit(root).path)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)", root):
        return root, Folder(Path(root))
    from inlay.library import url

    return root.rstrip("/"), url.Url(root)


class Folder:
    """A folder on this machine.

    A file is written beside its place, synced, and then given its name: by a link if the name must be free (unlike a
    rename, a link fails if it is taken), by a rename if it may be replaced. The folder is synced after that. Without
    links, a file with the content TAKEN takes the name first; if a kill leaves it there, it counts as missing.
    """

    def __init__(self, root: Path):
        self.root = root

    def where(self, path: str) -> str:
        """The full path, for people."""
        return os.path.join(self.root, path)

    def read(self, path: str, limit: int | None = None) -> bytes:
        """A file's content; a file of more than `limit` bytes is refused before it is read."""
        with self._trying("read", path):
            return read_file(self.where(path), limit)

    def read_all(self, paths: Iterable[str], limit: int) -> dict[str, bytes | LibraryError]:
        """Many small files at once; missing ones are left out."""
        contents: dict[str, bytes | LibraryError] = {}
        for path in paths:
            try:
                contents[path] = self.read(path, limit)
            except FileNotFoundError:
                continue
            except LibraryError as error:
                contents[path] = error
        return contents

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file; False if the path is taken."""
        with self._written(path, content) as part:
            target = self.root / path
            try:
                os.link(part, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if not _take(target):
                    return False
                part.replace(target)
            _sync(part.parent)
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Write a file, also over an existing one."""
        with self._written(path, content) as part:
            part.replace(self.root / path)
            _sync(part.parent)

    def list(self, folder: str, parts: bool = False) -> list[File]:
        """All files below a folder; links to folders are not followed."""
        with self._trying("read", folder):
            try:
                return list(_walk(str(self.root / folder), folder, parts))
            except (FileNotFoundError, NotADirectoryError):
                if self.root.exists() and not self.root.is_dir():
                    raise LibraryError(f"{self.root} is a file; a library is a folder, or a URL") from None
                return []

    def stat(self, path: str) -> File | None:
        """One file, or None."""
        try:
            status = os.stat(self.root / path)
        except OSError:
            return None
        return File(path, status.st_size, status.st_mtime)

    def remove(self, path: str) -> None:
        """Delete a file; nothing happens if it is not there."""
        with self._trying("delete", path):
            (self.root / path).unlink(missing_ok=True)

    def move(self, old: str, new: str) -> None:
        """Rename a file, also over an existing one."""
        target = self.root / new
        with self._trying("move", old):
            _make(target.parent)
            (self.root / old).replace(target)
            _sync(target.parent)

    @contextlib.contextmanager
    def _trying(self, what: str, path: str) -> Iterator[None]:
        """An error of the system becomes a LibraryError, except that of a missing file."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, MemoryError) as error:
            raise LibraryError(f"cannot {what} {self.where(path)}: {error}") from None

    @contextlib.contextmanager
    def _written(self, path: str, content: bytes) -> Iterator[Path]:
        """A file beside its place, whole and synced; it is gone afterwards."""
        target, part = self.root / path, None
        try:
            _make(target.parent)
            handle, name = tempfile.mkstemp(prefix=PART, dir=target.parent)
            part = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o644)  # a temporary file is its owner's alone
            yield part
        except OSError as error:
            raise LibraryError(f"cannot write {target}: {error}") from None
        finally:
            if part is not None:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)


def read_file(path: str | Path, limit: int | None = None) -> bytes:
    """The content of a plain file; a pipe, which might never end, and a file that is too long are refused."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a plain file")
        if limit is not None and status.st_size > limit:
            raise DamagedError(f"{path} is damaged: it has {status.st_size:,} bytes, at most {limit:,} are right")
        return file.read() if limit is None else file.read(limit + 1)


def _walk(folder: str, name: str, parts: bool) -> Iterator[File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{name}/{entry.name}" if name else entry.name
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield from _walk(entry.path, path, parts)
            elif parts or not entry.name.startswith(PART):
                with contextlib.suppress(FileNotFoundError):  # gone since
                    status = entry.stat(follow_symlinks=False)
                    yield File(path, status.st_size, status.st_mtime)


def _take(path: Path) -> bool:
    """Take a name that must be free."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(handle, TAKEN)
    finally:
        os.close(handle)
    return True


def _make(folder: Path) -> None:
    """Make a folder that survives a power cut."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    if missing or not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    for f in reversed(missing):
        _sync(f.parent)


def _sync(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
