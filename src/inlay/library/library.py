"""A library: adapters with names, versions and aliases, in a folder or at any URL that fsspec knows.

    blobs/<sha256>.safetensors                 the adapters, each once, named by their content
    adapters/<name>/<version>.json             a card for every version: which blob, and what is in it
    adapters/<name>/aliases/<alias>/<n>.json   every move of an alias; the highest number is where it points
    trash/<name>/<version>.json                cards of removed versions, until `gc`

Nothing is locked. A file appears whole or not at all, and a number (of a version, of an alias's move) belongs to the
writer that creates its file first, so writers at the same time lose nothing; readers see the state before or after.
"""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inlay.errors import AdapterError, DamagedError, LibraryError, suggest
from inlay.library import aliases, cards, trash
from inlay.library.adapter import Adapter, read_content
from inlay.library.aliases import Move
from inlay.library.cards import Entry, Problem, blob_path, card_path
from inlay.library.ensemble import Ensemble, read_ensemble
from inlay.library.index import IndexedName, read_index
from inlay.library.names import check_name, number_of, split_ref
from inlay.library.storage import TAKEN, Folder, open_storage
from inlay.library.trash import Freed
from inlay.library.verify import check_library

__all__ = ["Entry", "Freed", "Library", "Move", "Problem", "check_name", "default_root"]

_TRIES = 5
"""How often a name is looked up again if it changes meanwhile."""


def default_root() -> str:
    """`INLAY_LIBRARY`, or a folder in the user's data folder."""
    return os.environ.get("INLAY_LIBRARY") or os.path.join(data_folder(), "inlay")


def data_folder() -> str:
    """Where this user's programs keep data."""
    return os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")


class Library:
    """Adapters by name, version and alias: `sms` (the newest), `sms@3`, `sms@prod`."""

    def __init__(self, root: str | os.PathLike[str] | None = None):
        self.root, self.storage = open_storage(default_root() if root is None else os.fspath(root))

    def __repr__(self) -> str:
        if not isinstance(self.storage, Folder):  # counting might ask another machine
            return f"<Library {self.root!r}>"
        try:
            count = len(self.names())
        except LibraryError as error:
            return f"<Library {self.root!r}: {error}>"
        return f"<Library {self.root!r}: {count:,} adapter{'' if count == 1 else 's'}>"

    @property
    def local(self) -> Path:
        """A folder on this machine for local files such as checkpoints, beside the adapters if possible."""
        if isinstance(self.storage, Folder):
            return self.storage.root
        return Path(data_folder(), "inlay", "urls", hashlib.sha256(self.root.encode()).hexdigest()[:16])

    def put(
        self, adapter: Adapter | Ensemble, name: str | None = None, *, parents: Sequence[str] | None = None, **more: Any
    ) -> Entry:
        """Add an adapter or an ensemble as the next version of its name; the newest version if nothing has changed.

        The blob is written first, so that no card lacks its blob, and looked for again after the card is written: a
        `gc` in between may have deleted a blob that had no card yet.

        Args:
            parents: what it was made from (refs or hashes); by default what the adapter says.
            more: what else the card should say; JSON.
        """
        name = check_name(adapter.name if name is None else name)
        adapter = replace(adapter, name=name)
        if adapter.base_name:
            more.setdefault("base_name", adapter.base_name)
        card, files = _written(adapter, more, parents)
        cards.encode(card, name, 1)  # a card that cannot be written is noticed before anything is
        for sha256, content in files.items():
            self.storage.replace(blob_path(sha256), content)
        entry = self._take(name, card)
        for sha256, content in files.items():
            stored = self.storage.stat(blob_path(sha256))
            if stored is None or stored.size != len(content):
                self.storage.replace(blob_path(sha256), content)
        return entry

    def get(self, ref: str) -> Adapter | Ensemble:
        """An adapter or an ensemble; its content is checked against its hash, and its fields against its card."""
        return self.read(self.find(ref))

    def read(self, entry: Entry) -> Adapter | Ensemble:
        """The adapter or ensemble of an entry, checked as in `get`."""
        return self._read_ensemble(entry) if entry.members else self.read_adapter(entry)

    def read_adapter(self, entry: Entry, what: str = "used so") -> Adapter:
        """The adapter of an entry.

        Args:
            what: what is done with it, for the error if it is an ensemble.
        """
        entry.check_one(what)
        where = self.storage.where(blob_path(entry.sha256))
        try:
            adapter, written = read_content(self.blob(entry), where)
        except AdapterError as error:
            raise DamagedError(f"{entry.ref} is damaged: {error}") from None
        cards.compare(entry, written, self.storage.where(card_path(entry.name, entry.version)))
        return replace(adapter, base_name=str(entry.card.get("base_name") or ""))

    def _read_ensemble(self, entry: Entry) -> Ensemble:
        where = self.storage.where(blob_path(entry.sha256))
        try:
            written = read_ensemble(self.blob(entry), where)
            cards.compare(entry, written, self.storage.where(card_path(entry.name, entry.version)))
            if written["members"] != [member.sha256 for member in entry.members]:
                raise AdapterError("its card names other members than its file")
            members = tuple(self._member(entry, member) for member in entry.members)
            refs = tuple(str(member.card.get("ref") or "") for member in entry.members)
            return Ensemble(members, tuple(written["weights"]), entry.name, written["about"], refs)
        except AdapterError as error:
            raise DamagedError(f"{entry.ref} is damaged: {error}") from None

    def _member(self, entry: Entry, member: Entry) -> Adapter:
        """A member of an ensemble; only the ensemble's card has the base's name."""
        try:
            return replace(self.read_adapter(member), base_name=str(entry.card.get("base_name") or ""))
        except DamagedError as error:
            raise DamagedError(f"{entry.ref}: its member {error}") from None

    def blob(self, entry: Entry) -> bytes:
        """The bytes of an entry's file, checked against their hash."""
        path = blob_path(entry.sha256)
        where = self.storage.where(path)
        try:
            content = self.storage.read(path, entry.bytes)
        except FileNotFoundError:
            raise DamagedError(f"{entry.ref} cannot be read: {where} is missing") from None
        except LibraryError as error:
            raise type(error)(f"{entry.ref}: {error}") from None
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise DamagedError(f"{entry.ref} is damaged: {where} is not what its name says")
        return content

    def find(self, ref: str) -> Entry:
        """The entry of `name` (its newest version), `name@version` or `name@alias`."""
        name, which = split_ref(ref)
        for _ in range(_TRIES):
            indexed = self._indexed(name)
            entry = self._entry(name, self.resolve(name, which, indexed), indexed)
            if entry is not None:
                return entry
        raise LibraryError(f"{ref} was removed a moment ago")

    def resolve(self, name: str, which: str | None, indexed: IndexedName | None = None) -> int:
        """The number of a version, from its number, from an alias, or from None (the newest)."""
        indexed = self._indexed(name) if indexed is None else indexed
        if not indexed.versions and indexed.removed:
            raise _removed(name)
        if not indexed.versions:
            names = self.names()
            hint = suggest(name, names) if names else "It has no adapters yet; inlay train FILE makes one"
            raise LibraryError(f"no adapter {name!r} in {self.root}. {hint}")
        version = indexed.versions[-1] if which is None else number_of(which)
        for _ in range(_TRIES):
            if which is not None and number_of(which) is None:
                version = aliases.target(self.storage, name, which, indexed)
            if version is None or version in indexed.versions:
                break
            indexed = self._indexed(name)  # an alias may point to a version that is newer than the listing
            if version in indexed.versions or which == str(version):
                break
        if version is not None and version in indexed.versions:
            return version
        if version in indexed.removed:
            raise _removed(f"{name}@{version}")
        valid = [*map(str, indexed.versions), *sorted(aliases.current(self.storage, name, indexed, []))]
        raise LibraryError(f"{name} has no version {which!r}. Valid: {', '.join(valid) or 'none'}")

    def names(self) -> builtins.list[str]:
        """All names."""
        return sorted(name for name, indexed in read_index(self.storage).items() if indexed.versions)

    def versions(self, name: str) -> builtins.list[int]:
        """All versions of a name, ascending."""
        return self._indexed(check_name(name)).versions

    def list(self, all_versions: bool = False, damaged: builtins.list[Problem] | None = None) -> builtins.list[Entry]:
        """The newest version of every adapter, or all versions, by name.

        Args:
            damaged: a list to which problems with unreadable cards and aliases are added; without it the first
                unreadable card raises.
        """
        index = read_index(self.storage)
        wanted = [(name, v) for name, s in sorted(index.items()) for v in (s.versions if all_versions else s.newest)]
        return self._entries(wanted, index, damaged)

    def aliases(self, name: str, skip_damaged: bool = False) -> dict[str, int]:
        """Where the aliases of a name point.

        Args:
            skip_damaged: leave out unreadable ones; else the first of them raises.
        """
        indexed = self._indexed(check_name(name))
        return aliases.current(self.storage, name, indexed, [] if skip_damaged else None)

    def alias(self, name: str, alias: str, version: int | None) -> None:
        """Point an alias to a version, in one step: readers see the old one or the new one. None removes it."""
        aliases.move(self, check_name(name), alias, version)

    def alias_history(self, name: str, alias: str) -> builtins.list[Move]:
        """Every move of an alias, oldest first."""
        return aliases.history(self.storage, check_name(name), alias, self._indexed(name))

    def remove(self, *refs: str) -> builtins.list[Entry]:
        """Move versions, or with a plain name all its versions, into the trash, all or none.

        Refused while an alias points to one of them, or an ensemble that stays has one as a member.
        """
        return trash.remove(self, refs)

    def removed(self) -> builtins.list[Entry]:
        """The versions in the trash."""
        return trash.removed(self)

    def restore(self, *refs: str) -> builtins.list[Entry]:
        """Take versions, or with a plain name all of its own, out of the trash, all or none."""
        return trash.restore(self, refs)

    def gc(self, dry_run: bool = False, grace: float = trash.GRACE) -> Freed:
        """Empty the trash, and delete blobs that no card names and files that a killed writer left.

        Args:
            grace: files younger than this many seconds may belong to a running writer, and stay.
        """
        return trash.gc(self, dry_run, grace)

    def verify(self, ref: str | None = None) -> builtins.list[Problem]:
        """Check everything, or what a ref names, down to the bytes; returns what is wrong."""
        return check_library(self, ref)

    def _indexed(self, name: str) -> IndexedName:
        return read_index(self.storage, name).get(name, IndexedName())

    def _entry(self, name: str, version: int, indexed: IndexedName) -> Entry | None:
        """The entry of a version; None if it is not there any more."""
        return next(iter(self._entries([(name, version)], {name: indexed}, None)), None)

    def _entries(
        self,
        wanted: Iterable[tuple[str, int]],
        index: Mapping[str, IndexedName],
        damaged: builtins.list[Problem] | None,
    ) -> builtins.list[Entry]:
        """The entries of versions that are there; without a list for it, a damaged card raises."""
        paths = {card_path(*key): key for key in wanted}
        contents = self.storage.read_all(paths, cards.LIMIT)
        targets = aliases.current_of_all(self.storage, index, [] if damaged is None else damaged)
        entries = []
        for path, (name, version) in paths.items():
            content = contents.get(path, cards.GONE)
            if content in (cards.GONE, TAKEN):  # removed since, or not there yet
                continue
            try:
                entry = cards.decode(content, name, version, self.storage.where(path))
            except LibraryError as error:
                if damaged is None:
                    raise
                damaged.append(Problem(f"{name}@{version}", self.storage.where(path), str(error)))
                continue
            names = tuple(sorted(alias for alias, v in targets.get(name, {}).items() if v == version))
            entries.append(replace(entry, aliases=names))
        return entries

    def _take(self, name: str, card: dict[str, Any]) -> Entry:
        """The newest version if it has this content already; else a card under the next number that is free."""
        indexed = self._indexed(name)
        same = self._same(name, indexed.newest, card["sha256"], indexed)
        version = indexed.highest
        while same is None:
            version += 1
            if number_of(str(version)) is None:
                raise LibraryError(f"{name} has no number left for another version")
            content = cards.encode(card, name, version)
            if self.storage.create(card_path(name, version), content):
                return cards.decode(content, name, version, self.storage.where(card_path(name, version)))
            same = self._same(name, [version], card["sha256"], indexed)  # another writer may have put the same
        return same

    def _same(self, name: str, versions: Iterable[int], sha256: str, indexed: IndexedName) -> Entry | None:
        for version in versions:
            try:
                entry = self._entry(name, version, indexed)
            except LibraryError:  # damaged: the adapter gets a new number
                continue
            if entry is not None and entry.sha256 == sha256:
                return entry
        return None


def _written(
    adapter: Adapter | Ensemble, extra: dict[str, Any], parents: Sequence[str] | None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A card, and the files that it names, by their hashes; its own comes last."""
    if isinstance(adapter, Adapter):
        content = adapter.content()
        sha256 = hashlib.sha256(content).hexdigest()
        return cards.make(adapter, sha256, len(content), extra, parents), {sha256: content}
    contents = [member.content() for member in adapter.members]
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    members = [
        {"name": member.name, **cards.make(member, sha256, len(content), {}, None), **({"ref": ref} if ref else {})}
        for member, sha256, content, ref in zip(adapter.members, hashes, contents, adapter.refs, strict=True)
    ]
    content = adapter.content(hashes)
    sha256 = hashlib.sha256(content).hexdigest()
    extra = {**extra, "members": members, "weights": list(adapter.weights)}
    card = cards.make(
        adapter, sha256, len(content), extra, list(filter(None, adapter.refs)) if parents is None else parents
    )
    return card, dict(zip([*hashes, sha256], [*contents, content], strict=True))


def _removed(ref: str) -> LibraryError:
    return LibraryError(f"{ref} was removed; unless gc has run since, inlay library restore {ref} brings it back")
