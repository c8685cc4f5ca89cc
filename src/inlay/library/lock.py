"""One process at a time: a lock on a file beside what it protects. It ends with the process that holds it.

Where files cannot be locked (some network drives, some systems), there is no lock, and no process is refused.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from inlay.errors import DiskError, RunError


class Lock:
    """A lock that is held until it is released."""

    def __init__(self, path: Path, refusal: str):
        """
        Args:
            refusal: the error message if another process holds it.
        """
        self.path = path
        self._file: IO[str] | None = None
        while self._file is None:
            self._file = self._taken(refusal)

    def _taken(self, refusal: str) -> IO[str] | None:
        """The locked file; None if its last holder has removed it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a")
        except OSError as error:
            raise DiskError(f"cannot write {self.path}: {error.strerror}") from None
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RunError(refusal) from None
        except (ImportError, OSError):  # no locks here
            return file
        with suppress(OSError):
            if os.fstat(file.fileno()).st_ino == self.path.stat().st_ino:
                return file
        file.close()
        return None

    def release(self, remove: bool = False) -> None:
        """Let other processes have it."""
        if self._file is None:
            return
        if remove:  # while it is held: a process that waits for it sees that it is gone
            self.path.unlink(missing_ok=True)
        self._file.close()
        self._file = None
