"""Checkpoints: everything a loop needs to go on, in one file that appears whole or not at all.

The file is replaced by a rename after its bytes are on disk, so a kill at any moment leaves the old one or the new one.
The adapters of finished runs are written once, beside it, before the state that says they are finished.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from inlay.errors import AdapterError, DiskError, RunError
from inlay.library.adapter import Adapter
from inlay.library.lock import Lock
from inlay.library.storage import PART
from inlay.library.tensors import written

_FORMAT = 1
_HALF = (".state.*", f"{PART}*", ".done-*.safetensors.*")
"""Files that are being written."""


class Checkpoint:
    """A folder with the state of one loop."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.file = self.folder / "state.safetensors"

    @property
    def exists(self) -> bool:
        """Whether there is something to resume."""
        return self.file.is_file()

    def save(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace the state."""
        content = written(tensors, {"inlay-loop": json.dumps({"format": _FORMAT, **state})})
        self._make_folder()
        self._write(content)

    def _write(self, content: bytes) -> None:
        part = self.folder / f".state.{os.getpid()}"
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.file)
            _sync_folder(self.folder)
        except OSError as error:
            raise DiskError(f"cannot write the checkpoint {self.file}: {error}") from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The state and its tensors."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, "pt") as file:
                state = json.loads((file.metadata() or {})["inlay-loop"])
                # copies: what is read is a window on the file, which is about to be replaced
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{self.file} is not a checkpoint: {error}") from None
        if not isinstance(state, dict) or state.pop("format", None) != _FORMAT:
            raise RunError(f"{self.file} was written by another version of Inlay")
        return state, tensors

    def keep(self, index: int, adapter: Adapter) -> None:
        """Put a finished run's adapter aside."""
        self._make_folder()
        try:
            adapter.save(self._done(index))  # which waits until it is on disk
        except AdapterError as error:
            raise DiskError(f"cannot write the checkpoint {self.folder}: {error}") from None

    def kept(self, index: int) -> Adapter:
        """A finished run's adapter."""
        try:
            return Adapter.read(self._done(index))
        except AdapterError as error:
            raise RunError(f"the checkpoint {self.folder} lacks a finished adapter: {error}") from None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from training into this folder; reading is always possible."""
        refusal = f"another process is using {self.folder}; wait for it, or use another name"
        folder = self.folder.absolute()
        lock = Lock(folder.with_name(f"{folder.name}.lock"), refusal)
        try:
            self._delete(*_HALF)  # left by writers that were killed: there is no other writer now
            yield
        finally:
            lock.release(remove=True)

    def remove(self) -> None:
        """Remove all files, at the end or to start over; only within `alone`."""
        self._delete(self.file.name, "done-*.safetensors", *_HALF)  # first the state, without which the rest is ignored

    def _delete(self, *patterns: str) -> None:
        try:
            for pattern in patterns:
                for file in self.folder.glob(pattern):
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise DiskError(f"cannot clean up the checkpoint {self.folder}: {error}") from None
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # unless there is something in it that is not ours

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"cannot write the checkpoint {self.folder}: {error}") from None

    def _done(self, index: int) -> Path:
        return self.folder / f"done-{index}.safetensors"


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last; not every system lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
