"""The versions and aliases of every name in a library, from one listing, without reading cards."""

from __future__ import annotations

from dataclasses import dataclass, field

from inlay.library.cards import GONE, LIMIT
from inlay.library.names import check_name, parse
from inlay.library.storage import TAKEN, Storage


@dataclass
class IndexedName:
    """The files of one name."""

    versions: list[int] = field(default_factory=list)
    """Ascending."""
    removed: list[int] = field(default_factory=list)
    """Numbers of removed versions, which are not used again."""
    moves: dict[str, list[int]] = field(default_factory=dict)
    """Alias -> the numbers of its moves, ascending."""

    @property
    def newest(self) -> list[int]:
        """The newest version, if there is one."""
        return self.versions[-1:]

    @property
    def highest(self) -> int:
        """The highest number used so far."""
        return max([0, *self.versions[-1:], *self.removed[-1:]])


def read_index(storage: Storage, name: str | None = None) -> dict[str, IndexedName]:
    """Every name, or only one. Files that no library has written are skipped."""
    index: dict[str, IndexedName] = {}
    small: list[tuple[str, str | None, int, str]] = []
    for file in storage.list("adapters" if name is None else f"adapters/{check_name(name)}"):
        place = parse(file.path)
        if place is None:
            continue
        owner, alias, number = place
        indexed = index.setdefault(owner, IndexedName())
        if file.size in (len(GONE), len(TAKEN)):
            small.append((owner, alias, number, file.path))
        elif alias is not None:
            indexed.moves.setdefault(alias, []).append(number)
        else:
            indexed.versions.append(number)
    contents = storage.read_all((path for *_, path in small), LIMIT) if small else {}
    for owner, alias, number, path in small:
        content, indexed = contents.get(path), index[owner]
        if content == TAKEN:
            continue
        if alias is not None:
            indexed.moves.setdefault(alias, []).append(number)
        else:  # a card that was cut to this length is not one that was removed
            (indexed.removed if content == GONE else indexed.versions).append(number)
    for indexed in index.values():
        for numbers in (indexed.versions, indexed.removed, *indexed.moves.values()):
            numbers.sort()
    return index
