"""Which tasks are served: those of the library, less and more what was chosen while the service ran.

A choice (a task that was put to another version, or taken away) is written to a small file beside the library before it
is confirmed, so a service that was killed comes back with the same tasks; if it cannot be written, nothing changes.
Looking whether the library has changed costs one listing; cards are read only if it has.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.errors import InlayError, LibraryError, RunError, SlotError
from inlay.library.cards import Entry
from inlay.library.index import IndexedName, read_index
from inlay.library.names import number_of, split_ref
from inlay.library.storage import Folder
from inlay.serve.engine_types import check_served

if TYPE_CHECKING:
    from inlay.library.library import Library, Problem
    from inlay.serve.engine import Engine
    from inlay.serve.engine_types import Served

Tell = Callable[[str], None]


@dataclass(frozen=True)
class TaskSelection:
    """What the command that started the service wants served."""

    only: Mapping[str, str] | None = None
    """Name -> ref; None for the whole library."""
    alias: str | None = None
    """Serve what this alias points to; names without it are left out."""


@dataclass
class Choices:
    """What was chosen while the service ran, kept in a file."""

    path: Path | None = None
    put: dict[str, str] = field(default_factory=dict)
    """Name -> ref."""
    taken: list[str] = field(default_factory=list)

    @staticmethod
    def read(path: Path | None) -> Choices:
        """As they were kept; none if there is no such file."""
        if path is None or not path.exists():
            return Choices(path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            put = {check_served(name): str(ref) for name, ref in found["put"].items()}
            return Choices(path, put, [check_served(name) for name in found["taken"]])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, LibraryError) as error:
            raise LibraryError(f"{path} cannot be read: {error}; remove it to serve the library as it is") from None

    def keep(self) -> None:
        """Write them, whole or not at all."""
        if self.path is None:
            return
        text = json.dumps({"put": self.put, "taken": sorted(set(self.taken))}, indent=2)
        try:
            Folder(self.path.parent).replace(self.path.name, f"{text}\n".encode())
        except LibraryError as error:
            raise RunError(f"nothing was changed: the choice cannot be kept: {error}") from None

    def choose(self, name: str, ref: str | None) -> None:
        """Have this version served under a name; none if it is empty, what is usual if it is None."""
        self.put.pop(name, None)
        self.taken = [one for one in self.taken if one != name] + ([name] if ref == "" else [])
        if ref:
            self.put[name] = ref

    @contextmanager
    def changing(self, undo: Callable[[], object]) -> Iterator[None]:
        """Keep what the block changes; if that fails, all is as it was before, and `undo` is called."""
        put, taken = dict(self.put), list(self.taken)
        try:
            yield
            self.keep()
        except BaseException:
            self.put, self.taken = put, taken
            undo()
            raise


class Catalogue:
    """Makes an engine serve what it should."""

    def __init__(
        self, engine: Engine, library: Library, selection: TaskSelection | None = None, choices: Choices | None = None
    ):
        self.engine, self.library = engine, library
        self.selection = selection or TaskSelection()
        self.choices = choices or Choices()
        self._lock = threading.Lock()
        self._seen: dict[str, IndexedName] | None = None
        self._passed: dict[str, str] = {}
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._brought: set[str] = set()
        """Versions that somebody asked for beside the usual ones: `name@version`, `name@alias`."""

    def put(self, name: str, ref: str | None) -> Served:
        """Serve a version under a name from now on; without a ref the newest (or what the alias says), as it moves."""
        check_served(name)
        if "@" in name and ref not in (None, name):
            raise LibraryError(f"{name} always means that version, not {ref}; serve {ref} under another name")
        with self._lock:
            before = next((one.ref for one in self.engine.tasks() if one.name == name), None)
            served = self.engine.serve(name, self.library.find(ref or self._usual(name)))
            undo: Callable[[], object] = partial(self.engine.withdraw, name)
            if before is not None:
                undo = partial(self.engine.serve, name, before, read=False)
            with self.choices.changing(undo):
                left_out = self.selection.only is not None and name not in self.selection.only
                is_chosen = ref not in (None, self._usual(name)) or left_out or "@" in name
                self.choices.choose(name, (ref or self._usual(name)) if is_chosen else None)
            self._passed.pop(name, None)
            self._brought.discard(name)
            return served

    def take(self, name: str) -> None:
        """Serve a task no more, until it is put again."""
        with self._lock:
            if name not in {served.name for served in self.engine.tasks()}:
                raise SlotError(f"no task {name[:100]!r} is served")
            with self.choices.changing(lambda: None):
                self.choices.choose(name, "")
            gone = {name, *(one for one in self._brought if one.startswith(f"{name}@"))}
            for one in gone:
                self.engine.withdraw(one)
            self._brought -= gone

    def bring(self, tasks: Iterable[str]) -> None:
        """Serve these versions (`name@version`, `name@alias`) too, if the whole library is served, and has them."""
        if self.selection.only is not None or self.selection.alias is not None:
            return
        with self._lock:
            for task in tasks:
                name, _, which = task.partition("@")
                indexed = (self._seen or {}).get(name)
                has = indexed is not None and (number_of(which) in indexed.versions or which in indexed.moves)
                if has and not {name, task} & set(self.choices.taken) and not self.engine.serves(task):
                    with suppress(InlayError):  # it is not served then, which is what the ask is told
                        self.engine.serve(task, self.library.find(task))
                        self._brought.add(task)

    def adopt(self, change: Callable[[], bool]) -> list[str]:
        """Let somebody else's choices hold, and serve them; returns as `sync` does.

        Args:
            change: changes the choices; False if there was nothing to change.
        """
        with self._lock:
            changed = change()
        return self.sync(force=True) if changed else []

    def sync(self, force: bool = False) -> list[str]:
        """Serve what the library has now; returns what is new about tasks that cannot be served."""
        with self._lock:
            index = read_index(self.library.storage)
            if index == self._seen and not force:
                return []
            notes: dict[str, str] = {}
            now = {served.name: served for served in self.engine.tasks()}
            wanted = self._wanted(index, now, notes)
            for name, entry in wanted.items():
                if entry is not None:
                    self._serve(name, entry, now.get(name), notes)
            for name in now.keys() - wanted.keys():
                self.engine.withdraw(name)
            self._brought &= wanted.keys()
            new = [f"{name}: {why}" for name, why in notes.items() if self._passed.get(name) != why]
            self._seen, self._passed = index, notes
            return new

    def refused(self) -> list[str]:
        """Why tasks that were named to be served are not, as of the last look; a choice in their place is another."""
        with self._lock:
            named = (self.selection.only or {}).keys() - self.choices.put.keys()
            return [why for name, why in self._passed.items() if name in named]

    def _serve(self, name: str, entry: Entry, now: Served | None, notes: dict[str, str]) -> None:
        same = now is not None and now.ref == entry.ref
        if same and self._aliases.get(name) == entry.aliases:
            return
        try:
            self.engine.serve(name, entry, read=False if same else None)
            self._aliases[name] = entry.aliases
        except InlayError as error:  # what is served stays
            notes[name] = str(error)

    def _wanted(
        self, index: Mapping[str, IndexedName], now: Mapping[str, Served], notes: dict[str, str]
    ) -> dict[str, Entry | None]:
        """Name -> entry; None where what is served stays, because it cannot be known what should be."""
        wanted: dict[str, Entry | None] = {}
        self._brought -= self.choices.put.keys()
        refs = {**(self.selection.only or {}), **{task: task for task in self._brought}}
        if self.selection.only is None:
            damaged: list[Problem] = []
            found = self.library.list(all_versions=self.selection.alias is not None, damaged=damaged)
            notes |= {problem.ref: problem.message for problem in damaged}
            wanted = {problem.ref.partition("@")[0]: None for problem in damaged}
            wanted |= {e.name: e for e in found if self.selection.alias is None or self.selection.alias in e.aliases}
        for name, ref in (refs | self.choices.put).items():
            try:
                wanted[name] = self.library.find(ref)
            except LibraryError as error:
                notes[name] = str(error)
                wanted.pop(name, None)
                owner = split_ref(ref)[0]
                if name in now and owner in index and index[owner].versions:
                    wanted[name] = None
        gone = set(self.choices.taken)
        return {
            name: entry
            for name, entry in wanted.items()
            if name not in gone and not (name in self._brought and name.partition("@")[0] in gone)
        }

    def _usual(self, name: str) -> str:
        """What is served under a name unless something else was chosen."""
        if self.selection.only is not None and name in self.selection.only:
            return self.selection.only[name]
        if "@" in name:
            return name
        return name if self.selection.alias is None else f"{name}@{self.selection.alias}"


class Watcher:
    """A thread that looks at the library every so many seconds."""

    def __init__(self, catalogue: Catalogue, seconds: float, tell: Tell):
        self.catalogue, self.seconds, self.tell = catalogue, seconds, tell
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inlay-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        before = ""
        while not self._end.wait(self.seconds):
            try:
                problem = ""
                for note in self.catalogue.sync():
                    self.tell(note)
            except Exception as error:  # the library may be out of reach: what is served stays
                problem = str(error) or repr(error)
                if problem != before:
                    self.tell(problem)
            before = problem
