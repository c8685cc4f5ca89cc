"""Which tasks are served: those of the library, changed by what was chosen while the service ran.

A choice (a task that was switched to another version, or taken away) is written to a small file beside the library
before it is confirmed, so a service that was killed comes back with the same tasks; if it cannot be written, nothing
changes. Checking the library for changes costs one listing; cards are read only if it has changed.
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
from inlay.serve.engine_types import Served, check_served

if TYPE_CHECKING:
    from inlay.library.library import Library, Problem
    from inlay.serve.engine import Engine

Tell = Callable[[str], None]


@dataclass(frozen=True)
class TaskSelection:
    """The tasks that the command line names."""

    only: Mapping[str, str] | None = None
    """Name -> ref; None for the whole library."""
    alias: str | None = None
    """Serve the versions that this alias points to; names without it are left out."""


@dataclass
class Choices:
    """What was chosen while the service ran, kept in a file."""

    path: Path | None = None
    put: dict[str, str] = field(default_factory=dict)
    """Name -> ref."""
    taken: list[str] = field(default_factory=list)

    @staticmethod
    def read(path: Path | None) -> Choices:
        """The choices in a file; none if there is no such file."""
        if path is None or not path.exists():
            return Choices(path)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            put = {check_served(name): str(ref) for name, ref in document["put"].items()}
            return Choices(path, put, [check_served(name) for name in document["taken"]])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, LibraryError) as error:
            raise LibraryError(f"{path} cannot be read: {error}; remove it to serve the library as it is") from None

    def keep(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        text = json.dumps({"put": self.put, "taken": sorted(set(self.taken))}, indent=2)
        try:
            Folder(self.path.parent).replace(self.path.name, f"{text}\n".encode())
        except LibraryError as error:
            raise RunError(f"nothing was changed: the choice cannot be kept: {error}") from None

    def choose(self, name: str, ref: str | None) -> None:
        """Note the version to serve under a name; empty for none, None for the default."""
        self.put.pop(name, None)
        self.taken = [taken for taken in self.taken if taken != name] + ([name] if ref == "" else [])
        if ref:
            self.put[name] = ref

    @contextmanager
    def changing(self, undo: Callable[[], object]) -> Iterator[None]:
        """Keep what the block changes; if that fails, restore the choices and call `undo`."""
        put, taken = dict(self.put), list(self.taken)
        try:
            yield
            self.keep()
        except BaseException:
            self.put, self.taken = put, taken
            undo()
            raise


class Catalogue:
    """Makes an engine serve the library, the selection and the choices."""

    def __init__(
        self, engine: Engine, library: Library, selection: TaskSelection | None = None, choices: Choices | None = None
    ):
        self.engine, self.library = engine, library
        self.selection = selection or TaskSelection()
        self.choices = choices or Choices()
        self._lock = threading.Lock()
        self._seen: dict[str, IndexedName] | None = None
        self._notes: dict[str, str] = {}
        """Name -> why it cannot be served, as of the last look."""
        self._aliases: dict[str, tuple[str, ...]] = {}
        self._brought: set[str] = set()
        """Versions served beside the default ones because callers asked for them: `name@version`, `name@alias`."""

    def put(self, name: str, ref: str | None) -> Served:
        """Serve a version under a name from now on; without a ref, follow the newest version (or the alias)."""
        check_served(name)
        if "@" in name and ref not in (None, name):
            raise LibraryError(f"{name} always means that version, not {ref}; serve {ref} under another name")
        with self._lock:
            before = next((served.ref for served in self.engine.tasks() if served.name == name), None)
            served = self.engine.serve(name, self.library.find(ref or self._default_ref(name)))
            undo: Callable[[], object] = partial(self.engine.withdraw, name)
            if before is not None:
                undo = partial(self.engine.serve, name, before, read=False)
            with self.choices.changing(undo):
                left_out = self.selection.only is not None and name not in self.selection.only
                is_chosen = ref not in (None, self._default_ref(name)) or left_out or "@" in name
                self.choices.choose(name, (ref or self._default_ref(name)) if is_chosen else None)
            self._notes.pop(name, None)
            self._brought.discard(name)
            return served

    def take(self, name: str) -> None:
        """Stop serving a task, until it is put again."""
        with self._lock:
            if name not in {served.name for served in self.engine.tasks()}:
                raise SlotError(f"no task {name[:100]!r} is served")
            with self.choices.changing(lambda: None):
                self.choices.choose(name, "")
            withdrawn = {name, *(task for task in self._brought if task.startswith(f"{name}@"))}
            for task in withdrawn:
                self.engine.withdraw(task)
            self._brought -= withdrawn

    def bring(self, tasks: Iterable[str]) -> None:
        """Serve these versions (`name@version`, `name@alias`) too, if the library has them and is served as a whole."""
        if self.selection.only is not None or self.selection.alias is not None:
            return
        with self._lock:
            for task in tasks:
                name, _, suffix = task.partition("@")
                indexed = (self._seen or {}).get(name)
                exists = indexed is not None and (number_of(suffix) in indexed.versions or suffix in indexed.moves)
                if exists and not {name, task} & set(self.choices.taken) and not self.engine.serves(task):
                    with suppress(InlayError):  # it is not served then, and the ask says so
                        self.engine.serve(task, self.library.find(task))
                        self._brought.add(task)

    def adopt(self, change: Callable[[], bool]) -> list[str]:
        """Take over choices made elsewhere, and serve them; returns as `sync` does.

        Args:
            change: changes the choices; False if there was nothing to change.
        """
        with self._lock:
            changed = change()
        return self.sync(force=True) if changed else []

    def sync(self, force: bool = False) -> list[str]:
        """Serve what the library has now; returns new notes on tasks that cannot be served."""
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
            new = [f"{name}: {why}" for name, why in notes.items() if self._notes.get(name) != why]
            self._seen, self._notes = index, notes
            return new

    def refused(self) -> list[str]:
        """Why tasks named on the command line are not served, as of the last look; not those that a choice replaced."""
        with self._lock:
            named = (self.selection.only or {}).keys() - self.choices.put.keys()
            return [why for name, why in self._notes.items() if name in named]

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
        """Name -> entry; None to keep what is served, where the library cannot say what should be."""
        wanted: dict[str, Entry | None] = {}
        self._brought -= self.choices.put.keys()
        refs = {**(self.selection.only or {}), **{task: task for task in self._brought}}
        if self.selection.only is None:
            damaged: list[Problem] = []
            entries = self.library.list(all_versions=self.selection.alias is not None, damaged=damaged)
            notes |= {problem.ref: problem.message for problem in damaged}
            wanted = {problem.ref.partition("@")[0]: None for problem in damaged}
            wanted |= {e.name: e for e in entries if self.selection.alias is None or self.selection.alias in e.aliases}
        for name, ref in (refs | self.choices.put).items():
            try:
                wanted[name] = self.library.find(ref)
            except LibraryError as error:
                notes[name] = str(error)
                wanted.pop(name, None)
                owner = split_ref(ref)[0]
                if name in now and owner in index and index[owner].versions:
                    wanted[name] = None
        taken = set(self.choices.taken)
        return {
            name: entry
            for name, entry in wanted.items()
            if name not in taken and not (name in self._brought and name.partition("@")[0] in taken)
        }

    def _default_ref(self, name: str) -> str:
        """The ref served under a name unless another was chosen."""
        if self.selection.only is not None and name in self.selection.only:
            return self.selection.only[name]
        if "@" in name:
            return name
        return name if self.selection.alias is None else f"{name}@{self.selection.alias}"


class Watcher:
    """A thread that checks the library for changes every few seconds."""

    def __init__(self, catalogue: Catalogue, seconds: float, tell: Tell):
        self.catalogue, self.seconds, self.tell = catalogue, seconds, tell
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inlay-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
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
