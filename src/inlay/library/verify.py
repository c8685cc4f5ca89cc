"""Checks a library down to the bytes: every file is one that a library writes, and agrees with the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from inlay.errors import LibraryError
from inlay.library import aliases, cards, index
from inlay.library.cards import Problem, blob_path, card_path
from inlay.library.names import parse, split_ref

if TYPE_CHECKING:
    from inlay.library.index import IndexedName
    from inlay.library.library import Library


def check_library(library: Library, ref: str | None) -> list[Problem]:
    """Everything that is wrong, or what is wrong with one name or version."""
    if ref is None:
        return list(_everything(library))
    name, which = split_ref(ref)
    indexed = library._indexed(name)
    if which is not None or not (indexed.versions or indexed.moves):
        return list(_card(library, name, library.resolve(name, which, indexed)))
    return list(_name(library, name, indexed))


def _everything(library: Library) -> Iterator[Problem]:
    storage = library.storage
    for folder in ("adapters", "trash"):
        for file in sorted(storage.list(folder)):
            place = parse(file.path)
            if place is None or (folder == "trash" and place[1] is not None):
                yield Problem("", storage.where(file.path), f"{storage.where(file.path)} is not a library's file")
            elif folder == "trash":
                yield from _card(library, place[0], place[2], file.path)
    for name, indexed in sorted(index.read_index(storage).items()):
        yield from _name(library, name, indexed)
    yield from _blobs(library)


def _name(library: Library, name: str, indexed: IndexedName) -> Iterator[Problem]:
    for version in indexed.versions:
        yield from _card(library, name, version)
    for version in gaps([*indexed.versions, *indexed.removed]):  # numbers are taken in order, and stay taken
        where = library.storage.where(card_path(name, version))
        if library.storage.stat(card_path(name, version)) is None:
            yield Problem(f"{name}@{version}", where, f"{name}@{version} is lost: {where} is missing")
    for alias, numbers in sorted(indexed.moves.items()):
        yield from _alias(library, name, alias, numbers)


def _alias(library: Library, name: str, alias: str, numbers: list[int]) -> Iterator[Problem]:
    ref, storage = f"{name}@{alias}", library.storage
    paths = [aliases.move_path(name, alias, number) for number in numbers]
    contents = storage.read_all(paths, aliases.LIMIT)
    version: int | None = None
    for path in paths:
        try:
            version = aliases.decode(contents.get(path), path, storage.where(path)).version
        except LibraryError as error:
            version = None
            yield Problem(ref, storage.where(path), str(error))
    if version is not None and _dangles(library, name, alias):
        message = f"{ref} points to version {version}, which is not there"
        yield Problem(ref, storage.where(paths[-1]), message)
    for path in (aliases.move_path(name, alias, number) for number in gaps(numbers)):
        if storage.stat(path) is None:  # else its writer was killed when it had taken the number
            where = storage.where(path)
            yield Problem(ref, where, f"{ref} has lost a part of its history: {where} is missing")


def gaps(numbers: Iterable[int]) -> Iterator[int]:
    """The first number of every gap in 1, 2, 3, ...; a gap may be very long."""
    before = 0
    for number in sorted(numbers):
        if number > before + 1:
            yield before + 1
        before = number


def _dangles(library: Library, name: str, alias: str) -> bool:
    """Whether an alias points to nothing; one that was only moved meanwhile does not."""
    try:
        library.resolve(name, alias)
    except LibraryError:
        return alias in library.aliases(name)
    return False


def _card(library: Library, name: str, version: int, path: str | None = None) -> Iterator[Problem]:
    """What is wrong with a version: its card, its blob, or both together."""
    path = card_path(name, version) if path is None else path
    content = _content(library, path)
    if content is None:
        return
    where = library.storage.where(path)
    try:
        entry = cards.decode(content, name, version, where)
        where = library.storage.where(blob_path(entry.sha256))
        library.read(entry)
    except LibraryError as error:
        if _content(library, path) is not None:  # else it was removed while it was being read
            yield Problem(f"{name}@{version}", where, str(error))


def _content(library: Library, path: str) -> bytes | LibraryError | None:
    """What is in a card's file; None if the version was removed."""
    content = library.storage.read_all([path], cards.LIMIT).get(path, cards.GONE)
    return None if content == cards.GONE else content


def _blobs(library: Library) -> Iterator[Problem]:
    """Blobs that no card names; only their hashes can be checked."""
    entries = [*library.list(all_versions=True, damaged=[]), *library.removed()]
    named = {sha256 for entry in entries for sha256 in entry.blobs}
    for file in sorted(library.storage.list("blobs")):
        sha256, where = cards.hash_of(file.path), library.storage.where(file.path)
        if sha256 is None:
            yield Problem("", where, f"{where} is not a library's file")
        elif sha256 not in named:
            content = library.storage.read_all([file.path], file.size).get(file.path)
            if isinstance(content, LibraryError):
                yield Problem("", where, str(content))
            elif content is not None and hashlib.sha256(content).hexdigest() != sha256:
                yield Problem("", where, f"{where} is damaged: it is not what its name says")
