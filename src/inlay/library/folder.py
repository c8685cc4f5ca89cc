"""A library: a folder of adapters with names and versions.

    blobs/<sha256>.safetensors      the adapters, each once, named by their content
    adapters/<name>/<version>.json  a card for every version: which blob, and what is in it

A card appears whole or not at all, and its number is taken by whoever creates the file first, so writers that run at
the same time lose nothing. Putting the same adapter twice gives the same version.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inlay.errors import AdapterError, suggest
from inlay.library.adapter import Adapter
from inlay.version import __version__

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Entry:
    """One version of one adapter in a library."""

    name: str
    version: int
    sha256: str
    bytes: int
    card: Mapping[str, Any]
    """Everything known about it without reading its tensors."""


def default_root() -> Path:
    """`INLAY_LIBRARY`, else a folder among the user's data."""
    if os.environ.get("INLAY_LIBRARY"):
        return Path(os.environ["INLAY_LIBRARY"])
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "inlay"


class Library:
    """Adapters on disk, by name and version."""

    def __init__(self, root: str | os.PathLike[str] | None = None):
        self.root = Path(root) if root is not None else default_root()

    def put(self, adapter: Adapter, name: str | None = None, **more: Any) -> Entry:
        """Add an adapter as the next version of its name; the newest again if nothing has changed.

        Args:
            more: what else the card should say; JSON.
        """
        name = check_name(adapter.name if name is None else name)
        adapter = replace(adapter, name=name)
        sha256, size = self._put_blob(adapter)
        newest = max(self.versions(name), default=0)
        if newest and (found := self._entry(name, newest)).sha256 == sha256:
            return found
        card = _card(adapter, sha256, size) | more
        folder = self.root / "adapters" / name
        while True:
            newest += 1
            if _create(folder / f"{newest}.json", {"name": name, "version": newest, **card}):
                return self._entry(name, newest)

    def get(self, name: str) -> Adapter:
        """An adapter by `name` (its newest version) or `name@version`; its content is checked against its hash."""
        entry = self.find(name)
        path = self._blob(entry.sha256)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise AdapterError(f"{entry.name}@{entry.version} cannot be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise AdapterError(f"{entry.name}@{entry.version} is damaged: {path} is not what its name says")
        return Adapter.read(path)

    def find(self, name: str) -> Entry:
        """The entry of `name` or `name@version`."""
        plain, at, version = name.partition("@")
        versions = self.versions(check_name(plain))
        if not versions:
            raise AdapterError(f"there is no adapter {plain!r} in {self.root}: {suggest(plain, self.names())}")
        if not at:
            return self._entry(plain, max(versions))
        if not version.isdecimal() or int(version) not in versions:
            raise AdapterError(f"{plain} has no version {version!r}; valid: {', '.join(map(str, versions))}")
        return self._entry(plain, int(version))

    def names(self) -> list[str]:
        """All names."""
        folder = self.root / "adapters"
        return sorted(p.name for p in folder.iterdir() if self.versions(p.name)) if folder.is_dir() else []

    def versions(self, name: str) -> list[int]:
        """All versions of a name, ascending."""
        folder = self.root / "adapters" / name
        return sorted(int(p.stem) for p in folder.glob("*.json") if p.stem.isdecimal())

    def list(self) -> list[Entry]:
        """The newest version of every adapter."""
        return [self._entry(name, max(self.versions(name))) for name in self.names()]

    def _blob(self, sha256: str) -> Path:
        return self.root / "blobs" / f"{sha256}.safetensors"

    def _put_blob(self, adapter: Adapter) -> tuple[str, int]:
        """Store the content; it is there whole, under its hash, or not at all."""
        folder = self.root / "blobs"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(prefix=".part-", dir=folder)
            os.close(handle)
        except OSError as error:
            raise AdapterError(f"cannot write to the library {self.root}: {error}") from None
        try:
            adapter.save(part)
            content = Path(part).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(part, 0o644)
            Path(part).replace(self._blob(sha256))
        except OSError as error:
            raise AdapterError(f"cannot write to the library {self.root}: {error}") from None
        finally:
            Path(part).unlink(missing_ok=True)
        return sha256, len(content)

    def _entry(self, name: str, version: int) -> Entry:
        path = self.root / "adapters" / name / f"{version}.json"
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
            return Entry(name, version, card["sha256"], card["bytes"], card)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AdapterError(f"{path} is not a card: {error}") from None


def check_name(name: str) -> str:
    """A name that is a safe file name."""
    if not _NAME.fullmatch(name):
        raise AdapterError(
            f"a name has letters, digits, - _ and . in it, and starts with none of the last two: {name!r}"
        )
    return name


def _card(adapter: Adapter, sha256: str, size: int) -> dict[str, Any]:
    about = {key: value for key, value in adapter.about.items() if key != "history"}
    return {
        "sha256": sha256,
        "bytes": size,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "inlay": __version__,
        "method": adapter.method,
        "task": adapter.task,
        "base": adapter.base,
        "labels": list(adapter.labels),
        "head": adapter.head,
        "pool": adapter.pool,
        "seed": adapter.seed,
        **about,
    }


def _create(path: Path, card: Mapping[str, Any]) -> bool:
    """Write a new file, whole; False if there is one already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    except OSError as error:
        raise AdapterError(f"cannot write {path}: {error}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(card, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.link(part, path)  # unlike a rename, this fails if the path is taken
    except FileExistsError:
        return False
    except OSError as error:
        raise AdapterError(f"cannot write {path}: {error}") from None
    finally:
        Path(part).unlink(missing_ok=True)
    return True
