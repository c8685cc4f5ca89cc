"""Adapters between library (disk), memory and bank; each level holds what was used most recently.

An adapter that is wanted is read ahead by a thread, checked and unpacked there; only its copy into the bank is the
engine's own work, between two batches. An adapter that was loaded for an ask stays until the ask has run, so there is
progress however small the bank is. An adapter that cannot be read or loaded is tried again after a while.

The adapters of an ensemble are needed together, and one may be in several ensembles. So they are loaded as a group: a
group that is partly loaded is completed first, and its adapters stay until it has run.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch

from inlay.engine.host import Host
from inlay.errors import InlayError, LibraryError
from inlay.library.cards import Entry
from inlay.library.library import Library
from inlay.serve.adapter_cache import AdapterCache, Fitted
from inlay.serve.counters import Counters

_READERS = 4
_AHEAD = 32
"""Adapters that are read before there is room for them."""
RETRY = 5.0
"""Seconds until a broken adapter is tried again."""

Group = tuple[str, ...]
"""Adapters that are needed together; most groups have one."""
Waits = Callable[[str | Group], bool]
"""Whether there are asks for an adapter, or for a group."""


class Pager:
    """Moves adapters. `want`, `read`, `state` and `error` are for any thread, the rest for the engine's."""

    def __init__(
        self,
        host: Host,
        library: Library,
        resident: int,
        remembered: int,
        memory: int,
        wake: Callable[[], None],
        counters: Counters,
    ):
        """
        Args:
            resident: adapters in the bank.
            remembered, memory: adapters in memory, and their bytes.
            wake: called when something was read, or could not be.
        """
        self.host, self.library = host, library
        self.resident = resident
        self._wake, self._counters = wake, counters
        self._lock = threading.Lock()
        self._bank: OrderedDict[str, Entry] = OrderedDict()
        """Least recently used first."""
        self._fresh: set[str] = set()
        """Adapters in the bank that have not run since they were loaded."""
        self._memory = AdapterCache(remembered, memory)
        self._requested: OrderedDict[str, Entry] = OrderedDict()
        """Adapters to load because there are asks for them."""
        self._prefetch: OrderedDict[str, Entry] = OrderedDict()
        """Adapters to load before there are asks for them, after all others."""
        self.suspect = False
        """Whether the last attempt to load an adapter failed in a way that no adapter causes."""
        self._closed = False
        self._reading: set[str] = set()
        self._groups: dict[str, dict[Group, bool]] = {}
        """For every adapter: the groups that need it, and whether the whole group can be read ahead."""
        self._begun: Group | None = None
        """The group that is partly loaded."""
        self._broken: dict[str, tuple[InlayError, float]] = {}
        self._newly_broken: list[str] = []
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="inlay-read")

    def __contains__(self, ref: str) -> bool:
        return ref in self._bank

    def state(self, refs: Sequence[str]) -> Literal["bank", "memory", "disk"]:
        """Where a group of adapters is: the place of the one farthest from the bank."""
        if all(ref in self._bank for ref in refs):
            return "bank"
        return "memory" if all(ref in self._bank or ref in self._memory for ref in refs) else "disk"

    def sizes(self) -> tuple[int, int]:
        """How many adapters are in the bank and in memory."""
        return len(self._bank), len(self._memory)

    def error(self, ref: str) -> InlayError | None:
        """Why an adapter cannot be used at the moment."""
        with self._lock:
            error, since = self._broken.get(ref, (None, 0.0))
            if error is not None and time.monotonic() - since >= RETRY:
                del self._broken[ref]
                return None
            return error

    def want(self, entries: Sequence[Entry], asked: bool = True) -> None:
        """Have adapters loaded into the bank together; those on disk are read in the background.

        Args:
            asked: whether there are asks for them already.
        """
        with self._lock:
            group = tuple([entry.ref for entry in entries])
            fits = len(entries) <= _AHEAD and 2 * sum(entry.bytes for entry in entries) <= self._memory.size
            for entry in entries:
                self._groups.setdefault(entry.ref, {})[group] = fits
                if entry.ref not in self._bank:
                    self._request(entry, asked)
            self._read_ahead()

    def read(self, entry: Entry) -> None:
        """Read an adapter now, and remember it; an error if it cannot be used. It no longer counts as broken."""
        fitted = self._read(entry) if self.state([entry.ref]) == "disk" else None
        with self._lock:
            if fitted is not None:
                self._remember(fitted)
            self._broken.pop(entry.ref, None)

    def newly_broken(self) -> list[str]:
        """Adapters that turned out to be broken since the last call."""
        with self._lock:
            refs, self._newly_broken = self._newly_broken, []
        return refs

    def load_some(self, waits: Waits, seconds: float) -> bool:
        """Put wanted adapters into the bank, at least one, until the time is up; True if there may be more to do.

        Args:
            waits: an adapter that has asks leaves only after it has run, and is then wanted again. This must be true
                before `want` is called for an ask.
        """
        began, counted = time.perf_counter(), 0.0
        while (next_load := self._next(waits)) is not None:
            fitted, group = next_load
            ref = fitted.entry.ref
            if len(self._bank) >= self.resident and not self._make_room(ref, group, waits):
                if waits(ref):
                    break
                continue
            self._load(fitted, group)
            took = time.perf_counter() - began
            self._counters.add(load_seconds=took - counted)
            counted = took
            if took >= seconds:
                return True
        return False

    def used(self, refs: Iterable[str]) -> None:
        """These have run."""
        for ref in refs:
            if ref in self._bank:
                self._fresh.discard(ref)
                self._bank.move_to_end(ref)

    def drop(self, ref: str) -> None:
        """Take an adapter out of the bank and out of what is wanted; memory keeps it until it needs the room."""
        with self._lock:
            self._forget(ref)
            self._broken.pop(ref, None)
            self._groups.pop(ref, None)
        if ref in self._bank:
            self._evict(ref)

    def close(self) -> None:
        """Take everything out of the bank, and end the threads."""
        with self._lock:
            self._closed = True
            self._requested.clear()
            self._prefetch.clear()
            self._memory.clear()
        self._readers.shutdown(wait=False, cancel_futures=True)  # does not wait for a read that hangs
        for ref in list(self._bank):
            self._evict(ref)

    def _read_ahead(self) -> None:
        """Start reading what is wanted next; with the lock held."""
        size = 0
        for i, (ref, entry) in enumerate(self._upcoming()):
            size += entry.bytes
            if i and size > self._memory.size:
                break
            if ref not in self._memory and ref not in self._reading:
                self._reading.add(ref)
                self._readers.submit(self._fetch, entry)

    def _read(self, entry: Entry) -> Fitted:
        began = time.perf_counter()
        try:
            fitted = Fitted.of(self.host, self.library, entry)
        except InlayError:
            raise
        except Exception as error:
            raise LibraryError(f"{entry.ref} cannot be read: {error}") from error
        self._counters.add(reads=1, read_seconds=time.perf_counter() - began)
        return fitted

    def _fetch(self, entry: Entry) -> None:
        """In a reading thread."""
        ref = entry.ref
        try:
            fitted = self._read(entry)
        except InlayError as error:
            with self._lock:
                self._reading.discard(ref)
                self._mark_broken(ref, error)
        else:
            with self._lock:
                self._reading.discard(ref)
                if ref in self._requested or ref in self._prefetch:
                    self._remember(fitted)
        self._wake()

    def _mark_broken(self, ref: str, error: InlayError) -> None:
        """With the lock held."""
        self._broken[ref] = (error, time.monotonic())
        self._newly_broken.append(ref)
        self._forget(ref)

    def _remember(self, fitted: Fitted) -> None:
        """Keep an adapter in memory, next to those that are loaded next; with the lock held."""
        self._memory.keep(fitted, {ref for ref, _ in self._upcoming()})

    def _next(self, waits: Waits) -> tuple[Fitted, Group] | None:
        """The next adapter that can be loaded, and the group that it is loaded for."""
        if self._begun is not None and (not waits(self._begun) or self._is_loaded(self._begun)):
            self._begun = None
        with self._lock:
            for ref, _ in self._upcoming():
                if ref in self._memory and (group := self._group_of(ref, waits)) is not None:
                    return self._memory[ref], group
        return None

    def _group_of(self, ref: str, waits: Waits) -> Group | None:
        """The group that an adapter is loaded for now; None if every group has others that are not read yet. With the
        lock held."""
        groups = {group: fits for group, fits in self._groups.get(ref, {}).items() if waits(group)}
        if not groups:
            return (ref,)
        if self._begun in groups:
            return self._begun
        return next((group for group, fits in groups.items() if not fits or self._is_read(group)), None)

    def _is_read(self, group: Group) -> bool:
        return self.state(group) != "disk"

    def _is_loaded(self, group: Group) -> bool:
        return self.state(group) == "bank"

    def _has_to_run(self, ref: str, waits: Waits) -> bool:
        """Whether an adapter in the bank belongs to a loaded group that has asks and has not run yet; with the lock
        held."""
        groups = [group for group in self._groups.get(ref, ()) if waits(group) and self._is_loaded(group)]
        return any(not self._fresh.isdisjoint(group) for group in groups)

    def _upcoming(self) -> Iterator[tuple[str, Entry]]:
        """What is loaded next; with the lock held."""
        return itertools.islice(itertools.chain(self._requested.items(), self._prefetch.items()), _AHEAD)

    def _request(self, entry: Entry, asked: bool) -> None:
        """Have an adapter loaded, unless it is broken; with the lock held."""
        ref = entry.ref
        if ref in self._broken or ref in self._requested or self._closed:
            return
        if asked:
            self._prefetch.pop(ref, None)
        (self._requested if asked else self._prefetch).setdefault(ref, entry)

    def _forget(self, ref: str) -> None:
        """Do not load an adapter any more; with the lock held."""
        self._requested.pop(ref, None)
        self._prefetch.pop(ref, None)
        self._read_ahead()

    def _make_room(self, ref: str, group: Group, waits: Waits) -> bool:
        """Evict the least recently used adapter without asks, or else one that no loaded or partly loaded group needs.

        False if there is none, or if the adapter to load no longer has asks itself.
        """
        stay = {*group, *(self._begun or ())}
        with self._lock:
            if not waits(ref):
                self._forget(ref)
                return False
            victim = next((other for other in self._bank if not waits(other)), None)
            others = (o for o in self._bank if o not in stay and not self._has_to_run(o, waits))
            victim = victim or next(others, None)
        if victim is None:
            return False
        entry = self._bank[victim]
        self._evict(victim)
        self._counters.add(evictions=1)
        if waits(victim):  # an ask that came meanwhile may have found it in the bank
            with self._lock:
                self._request(entry, asked=True)
                self._read_ahead()
        return True

    def _load(self, fitted: Fitted, group: Group) -> None:
        ref = fitted.entry.ref
        try:
            self.host.enter(ref, fitted.record, fitted.tensors)
        except Exception as error:
            self.suspect = not isinstance(error, InlayError)
            if isinstance(error, torch.OutOfMemoryError):
                self.resident = max(1, len(self._bank))  # that many did fit
            if not isinstance(error, InlayError):
                error = LibraryError(f"{ref} cannot be loaded: {error}")
            with self._lock:
                self._mark_broken(ref, error)
            return
        self.suspect = False
        with self._lock:
            self._forget(ref)
            self._begun = self._begun or (group if len(group) > 1 else None)
            for mate in self._begun or ():
                if mate in self._requested:
                    self._requested.move_to_end(mate, last=False)  # a group that is partly loaded is completed first
            self._bank[ref] = fitted.entry
            self._fresh.add(ref)
            self._counters.add(loads=1)
            self._remember(fitted)
            self._read_ahead()

    def _evict(self, ref: str) -> None:
        with self._lock:
            del self._bank[ref]
            self._fresh.discard(ref)
            self._memory.use(ref)
        self.host.unload(ref)
