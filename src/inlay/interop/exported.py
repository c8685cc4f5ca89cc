"""An export: an adapter in a folder, or in a repo of the hub.

    adapter.safetensors   the adapter, exactly as a library stores it
    card.json             its card, with the file's hash and a digest of itself
    README.md             the same for people

What is imported is checked like a library's own files: hash, digest, and that the card and the file agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inlay.errors import DamagedError, LibraryError
from inlay.library import cards
from inlay.library.adapter import Adapter, read_content
from inlay.library.cards import Entry
from inlay.library.library import Library
from inlay.library.model_card import render_model_card

WEIGHTS, CARD, README = "adapter.safetensors", "card.json", "README.md"


def files(library: Library, ref: str, dtype: str | None = None, repo: str | None = None) -> dict[str, bytes]:
    """The files of an export.

    Args:
        dtype: `float16` or `float32`; the stored one by default.
        repo: the repo that the README says to pull; without one, it says to import the folder.
    """
    entry = library.find(ref)
    adapter = library.read_adapter(entry, "exported")
    content = (adapter if dtype is None else adapter.to(dtype)).content()
    about_file = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    about_file |= {"method": adapter.method, "task": adapter.task, "full": adapter.full}  # today's specs, as in it
    card = {key: value for key, value in entry.card.items() if key not in ("name", "version", "digest")} | about_file
    page = render_model_card({**card, "name": entry.name}, repo=repo)
    return {WEIGHTS: content, CARD: cards.encode(card, entry.name, entry.version), README: page.encode()}


def check(files: Mapping[str, bytes], source: str) -> tuple[Adapter, Entry]:
    """The adapter in the files of an export, if the files agree."""
    where = f"{source}/{CARD}"
    entry = cards.decode(files[CARD], *_name_and_version(files[CARD], where), where)
    content = files[WEIGHTS]
    if len(content) != entry.bytes or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise DamagedError(f"{source} is damaged: {WEIGHTS} is not the file that its card was written for")
    adapter, written = read_content(content, f"{source}/{WEIGHTS}")
    cards.compare(entry, written, where)
    return adapter, entry


def adopt(library: Library, files: Mapping[str, bytes], source: str, name: str | None = None) -> Entry:
    """Put the adapter of an export into a library, with everything on its card."""
    adapter, entry = check(files, source)
    facts = {key: value for key, value in entry.card.items() if key not in cards.OWN and key != "history"}
    facts["source"] = source
    return library.put(adapter, name or entry.name, parents=entry.parents, **facts)


def recognises(path: Path) -> bool:
    """Whether this is the folder of an export."""
    return (path / CARD).is_file() and (path / WEIGHTS).is_file()


def read(folder: Path) -> dict[str, bytes]:
    """The files of an export from a folder, unchecked."""
    try:
        if (folder / CARD).stat().st_size > cards.LIMIT:
            raise LibraryError(f"{folder / CARD} is not a card: it has more than {cards.LIMIT:,} bytes")
        return {name: (folder / name).read_bytes() for name in (CARD, WEIGHTS)}
    except OSError as error:
        raise LibraryError(f"cannot read {folder}: {error}") from None


def write(folder: Path, fill: Callable[[Path], None], force: bool = False) -> list[str]:
    """Let `fill` write files, which then appear in a folder together, or not at all if it fails. Returns their names.

    Args:
        force: write into a folder that is not empty, too.
    """
    try:
        if not force and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise LibraryError(f"{folder} already exists and is not empty: choose another folder, or pass --overwrite")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as part:
            fill(Path(part))
            folder.mkdir(exist_ok=True)
            paths = sorted(Path(part).iterdir())
            for path in paths:
                os.replace(path, folder / path.name)
            return [path.name for path in paths]
    except OSError as error:
        raise LibraryError(f"cannot write {folder}: {error}") from None


def fill_with(content: Mapping[str, bytes]) -> Callable[[Path], None]:
    """The `fill` of `write` for files that are in memory."""

    def fill(folder: Path) -> None:
        for name, data in content.items():
            (folder / name).write_bytes(data)

    return fill


def _name_and_version(content: bytes, where: str) -> tuple[str, int]:
    """The name and version in a card."""
    try:
        document: Any = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where} is not a card: {error}") from None
    name, version = (document.get(key) if isinstance(document, dict) else None for key in ("name", "version"))
    if not isinstance(name, str) or type(version) is not int:
        raise DamagedError(f"{where} is not a card: it has no name and version")
    return name, version
