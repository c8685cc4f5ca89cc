"""Aliases: names for versions that can be moved, `sms@prod`.

An alias is a series of small numbered files, one per move; the highest number counts. So a move is one new file, two
writers never overwrite each other, and the history is kept. Like a card, a move ends with a digest, which includes its
path: a changed bit, or another alias's file, must not move an alias to a version that happens to exist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from inlay.errors import DamagedError, LibraryError, suggest
from inlay.library import cards
from inlay.library.cards import Problem
from inlay.library.header import json_object
from inlay.library.index import IndexedName
from inlay.library.names import check_alias
from inlay.library.storage import Storage

if TYPE_CHECKING:
    from inlay.library.library import Library

LIMIT = 4096


class Move(NamedTuple):
    """Where an alias points, and since when."""

    version: int | None
    """None: it was removed."""
    at: str


def target(storage: Storage, name: str, alias: str, indexed: IndexedName) -> int | None:
    """Where one alias points; None if there is no such alias."""
    of_alias = IndexedName(moves={alias: indexed.moves[alias]} if alias in indexed.moves else {})
    return current(storage, name, of_alias).get(alias)


def move_path(name: str, alias: str, number: int) -> str:
    """Where a move of an alias is kept."""
    return f"adapters/{name}/aliases/{alias}/{number}.json"


def current(storage: Storage, name: str, indexed: IndexedName, damaged: list[Problem] | None = None) -> dict[str, int]:
    """Where every alias of a name points."""
    return current_of_all(storage, {name: indexed}, damaged).get(name, {})


def current_of_all(
    storage: Storage, index: Mapping[str, IndexedName], damaged: list[Problem] | None
) -> dict[str, dict[str, int]]:
    """Where every alias of every name points; unreadable ones are added to `damaged`, or raise without it."""
    last = {(n, a): move_path(n, a, moves[-1]) for n, indexed in index.items() for a, moves in indexed.moves.items()}
    contents = storage.read_all(last.values(), LIMIT) if last else {}
    targets: dict[str, dict[str, int]] = {}
    for (name, alias), path in last.items():
        try:
            move = decode(contents.get(path), path, storage.where(path))
        except LibraryError as error:
            if damaged is None:
                raise
            damaged.append(Problem(f"{name}@{alias}", storage.where(path), str(error)))
            continue
        if move.version is not None:
            targets.setdefault(name, {})[alias] = move.version
    return targets


def history(storage: Storage, name: str, alias: str, indexed: IndexedName) -> list[Move]:
    """Every move, oldest first."""
    numbers = indexed.moves.get(check_alias(alias))
    if numbers is None:
        raise LibraryError(f"{name} has no alias {alias!r}. {suggest(alias, indexed.moves)}")
    paths = [move_path(name, alias, number) for number in numbers]
    contents = storage.read_all(paths, LIMIT)
    return [decode(contents.get(path), path, storage.where(path)) for path in paths]


def move(library: Library, name: str, alias: str, version: int | None) -> None:
    """Point an alias to a version; None removes it. This also repairs a damaged alias."""
    check_alias(alias)
    indexed = library._indexed(name)
    if version is not None:
        version = library.resolve(name, str(version), indexed)
    damaged: list[Problem] = []
    targets = current(library.storage, name, indexed, damaged)
    before, unclear = targets.get(alias), f"{name}@{alias}" in {problem.ref for problem in damaged}
    if before is None and version is None and not unclear:
        raise LibraryError(f"{name} has no alias {alias!r}. {suggest(alias, targets)}")
    if before == version and not unclear:
        return
    number = _write(library.storage, name, alias, indexed, version)
    if version is not None and version not in library._indexed(name).versions:  # removed in between
        indexed.moves.setdefault(alias, []).append(number)
        _write(library.storage, name, alias, indexed, before)
        raise LibraryError(f"{name}@{version} was removed a moment ago; {alias} stays where it was")


def _write(storage: Storage, name: str, alias: str, indexed: IndexedName, version: int | None) -> int:
    number = max(indexed.moves.get(alias, [0]))
    move = Move(version, datetime.now(UTC).isoformat(timespec="seconds"))
    while True:
        number += 1
        path = move_path(name, alias, number)
        if storage.create(path, encode(move, path)):
            return number


def encode(move: Move, path: str) -> bytes:
    """A move as the bytes of its file."""
    return json.dumps({**move._asdict(), "digest": _digest(move, path)}).encode()


def decode(content: bytes | LibraryError | None, path: str, where: str) -> Move:
    """A move from the bytes of its file."""
    if isinstance(content, LibraryError):
        raise content
    try:
        fields = json_object(content or b"")
        move, digest = Move(fields["version"], fields["at"]), fields["digest"]
        if not (move.version is None or (type(move.version) is int and move.version > 0)) or type(move.at) is not str:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"{where} is damaged: it does not say where the alias points") from None
    if digest != _digest(move, path):
        raise DamagedError(f"{where} is damaged: it was changed after it was written (its digest does not match)")
    return move


def _digest(move: Move, path: str) -> str:
    return cards.digest_of({"path": path, **move._asdict()})
