"""Adapters between library (disk), memory and bank, each level holding what was used last.

An adapter that is wanted is read ahead by a thread, checked and unpacked there; only its copy into the bank is the
engine's own work, between two batches. Nothing that was loaded for an ask leaves before the ask has run, so there is
progress however small the bank is. One that cannot be read or loaded is tried again after a while.
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


class Pager:
    """Which adapters are where. `want`, `read`, `state` and `error` are for any thread, the rest for the engine's."""

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
        """The one used longest ago first."""
        self._fresh: set[str] = set()
        """Those in the bank that have not run since they were loaded."""
        self._memory = AdapterCache(remembered, memory)
        self._wishes: OrderedDict[str, Entry] = OrderedDict()
        """Those there are asks for."""
        self._hopes: OrderedDict[str, Entry] = OrderedDict()
        """Those nobody asks for yet; they come after the others."""
        self.suspect = False
        """Whether the last attempt to load an adapter failed in a way that no adapter causes."""
        self._closed = False
        self._reading: set[str] = set()
        self._mates: dict[str, frozenset[str]] = {}
        """Of members of ensembles: all that are needed together."""
        self._broken: dict[str, tuple[InlayError, float]] = {}
        self._news: list[str] = []
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="inlay-read")

    def __contains__(self, ref: str) -> bool:
        return ref in self._bank

    def state(self, refs: Sequence[str]) -> Literal["bank", "memory", "disk"]:
        """Where adapters are that are needed together: where the farthest of them is."""
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
        """Adapters are needed in the bank, all of them at once; they are read in the background if they must be.

        Args:
            asked: whether there is an ask for them already.
        """
        with self._lock:
            if len(entries) > 1 and 2 * sum(entry.bytes for entry in entries) <= self._memory.size:
                self._mates |= dict.fromkeys([entry.ref for entry in entries], frozenset(one.ref for one in entries))
            for entry in entries:
                ref = entry.ref
                if ref in self._bank or ref in self._broken or ref in self._wishes or self._closed:
                    continue
                if asked:
                    self._hopes.pop(ref, None)
                (self._wishes if asked else self._hopes).setdefault(ref, entry)
            self._read_ahead()

    def read(self, entry: Entry) -> None:
        """Read an adapter now, and remember it; an error if it cannot be used. One that was broken is so no more."""
        if self.state([entry.ref]) == "disk":
            found = self._read(entry)
            with self._lock:
                self._remember(found)
        with self._lock:
            self._broken.pop(entry.ref, None)

    def news(self) -> list[str]:
        """Adapters that turned out to be broken since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def load_some(self, waits: Callable[[str], bool], seconds: float) -> bool:
        """Put wanted adapters into the bank, for so long at most but at least one; True if there may be more to do.

        Args:
            waits: whether there are asks for an adapter: then it leaves only after it has run, and is wanted again. Who
                calls `want` for an ask must have made this true before.
        """
        began, counted = time.perf_counter(), 0.0
        while (found := self._next()) is not None:
            ref, fitted = found
            if len(self._bank) >= self.resident and not self._make_room(ref, waits):
                if waits(ref):
                    break
                continue
            self._load(ref, fitted)
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
        """Out of the bank, and wanted no more; memory forgets it in its own time."""
        with self._lock:
            self._pop(ref)
            self._broken.pop(ref, None)
            self._read_ahead()
        if ref in self._bank:
            self._evict(ref)

    def close(self) -> None:
        """Take everything out of the bank, and end the threads."""
        with self._lock:
            self._closed = True
            self._wishes.clear()
            self._hopes.clear()
            self._memory.clear()
        self._readers.shutdown(wait=False, cancel_futures=True)  # a read that hangs holds nobody up
        for ref in list(self._bank):
            self._evict(ref)

    def _read_ahead(self) -> None:
        """Start reading what is wanted next; with the lock held."""
        size = 0
        for i, (ref, entry) in enumerate(self._coming()):
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
                self._break(ref, error)
        else:
            with self._lock:
                self._reading.discard(ref)
                if ref in self._wishes or ref in self._hopes:
                    self._remember(fitted)
        self._wake()

    def _break(self, ref: str, error: InlayError) -> None:
        """With the lock held."""
        self._broken[ref] = (error, time.monotonic())
        self._news.append(ref)
        self._pop(ref)
        self._read_ahead()

    def _remember(self, fitted: Fitted) -> None:
        """With the lock held; what is wanted now does not leave."""
        self._memory.keep(fitted, {ref for ref, _ in self._coming()})

    def _next(self) -> tuple[str, Fitted] | None:
        """The first wish that can be loaded."""
        with self._lock:
            ready = (ref for ref, _ in self._coming() if ref in self._memory and self._mates_are_here(ref))
            ref = next(ready, None)
            return None if ref is None else (ref, self._memory[ref])

    def _mates_are_here(self, ref: str) -> bool:
        """Whether what is needed with an adapter can be loaded too: two halves of ensembles would block each other."""
        return all(mate in self._bank or mate in self._memory for mate in self._mates.get(ref, ()))

    def _lacks_mates(self, ref: str) -> bool:
        """Whether an adapter in the bank cannot run yet, for others of its ensemble."""
        return any(mate not in self._bank for mate in self._mates.get(ref, ()))

    def _coming(self) -> Iterator[tuple[str, Entry]]:
        """What is to be loaded next; with the lock held."""
        return itertools.islice(itertools.chain(self._wishes.items(), self._hopes.items()), _AHEAD)

    def _pop(self, ref: str) -> None:
        """No longer wanted; with the lock held."""
        self._wishes.pop(ref, None)
        self._hopes.pop(ref, None)

    def _make_room(self, ref: str, waits: Callable[[str], bool]) -> bool:
        """Let one leave for another: the one used longest ago that nobody waits for, else that has run since it came,
        or cannot run yet for want of others.

        Nobody leaves for one that nobody waits for any more.
        """
        if not waits(ref):
            self._forget_wish(ref, waits)
            return False
        victim = next((one for one in self._bank if not waits(one)), None)
        mates = self._mates.get(ref, frozenset())
        others = [one for one in self._bank if one not in mates]
        victim = victim or next((one for one in others if one not in self._fresh or self._lacks_mates(one)), None)
        if victim is None:
            return False
        entry = self._bank[victim]
        self._evict(victim)
        self._counters.add(evictions=1)
        if waits(victim):  # an ask that came meanwhile may have found it in the bank
            self.want([entry])
        return True

    def _load(self, ref: str, fitted: Fitted) -> None:
        try:
            self.host.enter(ref, fitted.record, fitted.tensors)
        except Exception as error:
            self.suspect = not isinstance(error, InlayError)
            if isinstance(error, torch.OutOfMemoryError):
                self.resident = max(1, len(self._bank))  # that many did fit
            said = error if isinstance(error, InlayError) else LibraryError(f"{ref} cannot be loaded: {error}")
            with self._lock:
                self._break(ref, said)
            return
        self.suspect = False
        with self._lock:
            self._pop(ref)
            for mate in self._mates.get(ref, frozenset()) & self._wishes.keys():
                self._wishes.move_to_end(mate, last=False)  # what has begun to come comes whole before anything else
            self._bank[ref] = fitted.entry
            self._fresh.add(ref)
            self._counters.add(loads=1)
            self._remember(fitted)
            self._read_ahead()

    def _forget_wish(self, ref: str, waits: Callable[[str], bool]) -> None:
        with self._lock:
            if not waits(ref):
                self._pop(ref)
                self._read_ahead()

    def _evict(self, ref: str) -> None:
        with self._lock:
            del self._bank[ref]
            self._fresh.discard(ref)
            self._memory.use(ref)
        self.host.unload(ref)
