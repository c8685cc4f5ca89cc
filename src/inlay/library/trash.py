"""Removing: into the trash, back out of it, and for good.

A removed card is copied into the trash, then a tombstone replaces it; after a kill in between, the version is still
there. The tombstone stays for ever, so a number never means another adapter.

`gc` runs beside writers. A writer writes a blob before its card, so a blob without a card may belong to a running
writer: a young one stays. An old one is set aside, the cards are read again, and it is deleted if still no card names
it. An even slower writer looks for its blob after its card is written, and writes it again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inlay.errors import DamagedError, LibraryError, suggest
from inlay.library import cards, index
from inlay.library.cards import Entry, blob_path, card_path
from inlay.library.names import parse, split_ref
from inlay.library.storage import PART, File

if TYPE_CHECKING:
    from inlay.library.library import Library

GRACE = 3600.0
"""Seconds a blob may be without a card: longer than any put takes."""
_FOLDERS = ("blobs", "adapters", "trash", "aside", "serving")


class Freed(NamedTuple):
    """What `gc` deleted, or would delete."""

    files: int
    bytes: int


def trash_path(name: str, version: int) -> str:
    """Where the card of a removed version is."""
    return f"trash/{name}/{version}.json"


def remove(library: Library, refs: Sequence[str]) -> list[Entry]:
    """Move versions into the trash, all or none. Entries of damaged ones have only name and version."""
    chosen = dict.fromkeys(key for ref in refs for key in _named_by(library, ref))
    _refuse_needed(library, chosen)
    mine: dict[tuple[str, int], bytes] = {}
    try:
        for key in chosen:
            if (content := _taken(library, *key)) is not None:
                mine[key] = content
        _refuse_needed(library, mine)  # an alias may have been moved here in between
    except LibraryError:
        for key in mine:
            with contextlib.suppress(LibraryError):  # a damaged one stays in the trash
                _put_back(library, *key)
        raise
    if not mine:
        raise LibraryError(f"{', '.join(refs)} was removed a moment ago")
    return [_whatever(library, content, *key) for key, content in mine.items()]


def _named_by(library: Library, ref: str) -> list[tuple[str, int]]:
    """The versions that a ref stands for."""
    name, which = split_ref(ref)
    indexed = library._indexed(name)
    version = library.resolve(name, which, indexed)
    return [(name, v) for v in (indexed.versions if which is None else [version])]


def _taken(library: Library, name: str, version: int) -> bytes | None:
    """Move a card into the trash and put a tombstone in its place; None if another process was faster.

    A process that restores it deletes the copy in the trash, perhaps the one just made: so the copy is made again.
    """
    storage, path = library.storage, card_path(name, version)
    try:
        content = storage.read(path)
    except FileNotFoundError:
        return None
    if content == cards.GONE:
        return None
    storage.replace(trash_path(name, version), content)
    storage.replace(path, cards.GONE)
    storage.create(trash_path(name, version), content)
    return content


def removed(library: Library) -> list[Entry]:
    """The versions in the trash."""
    files = list(_in_trash(library))
    contents = library.storage.read_all((file.path for *_, file in files), cards.LIMIT)
    there = [(contents[file.path], name, version) for name, version, file in files if file.path in contents]
    return [_whatever(library, content, name, version) for content, name, version in there]


def restore(library: Library, refs: Sequence[str]) -> list[Entry]:
    """Take versions out of the trash; none if one that is named is not there, or is damaged."""
    there = [(name, version) for name, version, _ in _in_trash(library)]
    chosen = dict.fromkeys(key for ref in refs for key in _in_trash_by(there, ref))
    paths = {trash_path(*key): key for key in chosen}
    for path, content in library.storage.read_all(paths, cards.LIMIT).items():
        _whole(library, content, *paths[path])
    entries = {key: _put_back(library, *key) for key in chosen}
    if gone := [f"{name}@{version}" for (name, version), entry in entries.items() if entry is None]:
        raise LibraryError(f"{', '.join(gone)} is not in the trash any more: it was restored or deleted a moment ago")
    return [entry for entry in entries.values() if entry is not None]


def _in_trash_by(there: Sequence[tuple[str, int]], ref: str) -> list[tuple[str, int]]:
    """The removed versions that a ref stands for."""
    name, which = split_ref(ref)
    of_name = [key for key in there if key[0] == name]
    chosen = [key for key in of_name if which is None or which == str(key[1])]
    if not chosen:
        raise LibraryError(f"{ref} is not in the trash. {suggest(ref, (f'{name}@{v}' for _, v in of_name))}")
    return chosen


def _whole(library: Library, content: bytes | LibraryError, name: str, version: int) -> Entry:
    """The entry of a card in the trash; an error if it cannot be restored."""
    entry = cards.decode(content, name, version, library.storage.where(trash_path(name, version)))
    if any(library.storage.stat(blob_path(sha256)) is None for sha256 in entry.blobs):
        raise LibraryError(f"{entry.ref} cannot be restored: its content was deleted")
    return entry


def _put_back(library: Library, name: str, version: int) -> Entry | None:
    """Put a card back in its place; None if it is not in the trash any more.

    A process that removes it again relies on the copy in the trash, perhaps the one that is deleted here: so the card
    is read again.
    """
    storage, path, place = library.storage, trash_path(name, version), card_path(name, version)
    try:
        content = storage.read(path, cards.LIMIT)
    except FileNotFoundError:
        return None
    entry = _whole(library, content, name, version)
    storage.replace(place, content)
    try:
        _whole(library, content, name, version)  # a gc may have been faster
    except LibraryError:
        storage.replace(place, cards.GONE)
        raise
    storage.remove(path)
    if storage.read_all([place], cards.LIMIT).get(place) == cards.GONE:
        storage.create(path, content)
    return entry


def gc(library: Library, dry_run: bool, grace: float) -> Freed:
    """Delete the trash, blobs that no card names, and files that killed writers left behind."""
    storage, old = library.storage, time.time() - grace
    parts = [
        file
        for folder in _FOLDERS
        for file in storage.list(folder, parts=True)
        if file.path.rpartition("/")[2].startswith(PART) and file.modified < old
    ]
    blobs = _blobs(library, "blobs")
    trash = list(_in_trash(library))
    named = _named(library)
    since = _removed_since(library, trash)
    doomed = {
        sha256: file
        for sha256, file in blobs.items()
        if sha256 not in named and (file.modified < old or file.modified <= since.get(sha256, 0.0))
    }
    if not dry_run:
        for file in (*parts, *(file for *_, file in trash)):
            storage.remove(file.path)
        doomed = _delete(library, doomed)
    files = [*parts, *(file for *_, file in trash), *doomed.values()]
    return Freed(len(files), sum(file.size for file in files))


def _delete(library: Library, doomed: dict[str, File]) -> dict[str, File]:
    """Set blobs aside, read the cards again, and delete the blobs that no card names."""
    storage = library.storage
    for sha256, file in list(doomed.items()):
        try:
            storage.move(file.path, _aside(sha256))
        except FileNotFoundError:  # another gc was faster
            del doomed[sha256]
    left = _blobs(library, "aside")
    named = _named(library) if left else set()
    for sha256 in left.keys() & named:
        with contextlib.suppress(FileNotFoundError):  # another gc was faster
            storage.move(_aside(sha256), blob_path(sha256))
    for sha256 in left.keys() - named:
        storage.remove(_aside(sha256))
    return {sha256: file for sha256, file in (doomed | left).items() if sha256 not in named}


def _blobs(library: Library, folder: str) -> dict[str, File]:
    files = [(cards.hash_of(file.path), file) for file in library.storage.list(folder)]
    return {sha256: file for sha256, file in files if sha256 is not None}


def _aside(sha256: str) -> str:
    return f"aside/{sha256}.safetensors"


def _named(library: Library) -> set[str]:
    """The blobs that cards name. A card that cannot be read might name any of them, so it stops everything."""
    try:
        return {sha256 for entry in library.list(all_versions=True) for sha256 in entry.blobs}
    except DamagedError as error:
        raise DamagedError(f"nothing is deleted while a card cannot be read: {error}; remove it first") from None


def _removed_since(library: Library, trash: list[tuple[str, int, File]]) -> dict[str, float]:
    """When the blobs of versions in the trash were last in use; a blob that was put again is younger."""
    contents = library.storage.read_all((file.path for *_, file in trash), cards.LIMIT)
    since: dict[str, float] = {}
    for name, version, file in trash:
        for sha256 in filter(None, _whatever(library, contents.get(file.path, b""), name, version).blobs):
            since[sha256] = max(file.modified, since.get(sha256, 0.0))
    return since


def _in_trash(library: Library) -> Iterator[tuple[str, int, File]]:
    """Removed versions, without copies whose card is still there: just being removed or restored."""
    files = library.storage.list("trash")
    live = index.read_index(library.storage) if files else {}
    for file in sorted(files):
        if (place := parse(file.path)) is not None and place[1] is None:
            name, _, version = place
            if name not in live or version not in live[name].versions:
                yield name, version, file


def _whatever(library: Library, content: bytes | LibraryError, name: str, version: int) -> Entry:
    """The entry of a card, or an empty one if it is damaged."""
    try:
        return cards.decode(content, name, version, library.storage.where(card_path(name, version)))
    except LibraryError:
        return Entry(name, version, "", 0, {"name": name, "version": version})


def _refuse_needed(library: Library, versions: Collection[tuple[str, int]]) -> None:
    """An error if an alias points to one of these versions, or another version has it as a member."""
    mine = {f"{name}@{version}" for name, version in versions}
    for entry in library.list(all_versions=True, damaged=[]):
        needed = {str(member.card.get("ref")) for member in entry.members} & mine
        if needed and entry.ref not in mine:
            raise LibraryError(f"{min(needed)} is a member of the ensemble {entry.ref}; remove that first")
    for name in dict.fromkeys(name for name, _ in versions):
        for alias, version in sorted(library.aliases(name).items()):
            if (name, version) in versions:
                raise LibraryError(f"{name}@{version} is what {name}@{alias} points to; move or remove the alias first")
