"""Engine: every task of a library from one host, in one thread that owns the device.

    engine = Engine(host, library)
    engine.serve("sms", "sms@3"); engine.start()
    engine.submit(Ask("sms", "you won a prize")).result()

Asks are encoded in the caller's thread, wait in a queue that is fair between tasks, and run together whatever their
task and method. An idle engine waits a moment for more asks; one with a backlog does not. Adapters that change the
base's own weights run in passes of their own, for a third of the time while others wait.

An error that no ask has caused fails all open asks, and the engine goes on. If the base itself no longer runs (a CUDA
error lasts as long as the process), or errors keep coming, its thread ends, and `on_failure` is called.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

from inlay.engine.host import Host
from inlay.errors import AdapterError, InlayError, RunError, SlotError
from inlay.library.library import Entry, Library
from inlay.serve.batch_runner import BatchRunner
from inlay.serve.counters import Counters
from inlay.serve.engine_types import (
    Answer,
    Ask,
    BatchDone,
    Busy,
    Counts,
    Late,
    Pending,
    Served,
    Settings,
    Stopped,
    check_served,
)
from inlay.serve.pager import Pager
from inlay.serve.scheduler import Scheduler
from inlay.serve.served_tasks import ServedTasks, Unknown, near
from inlay.serve.version import Item, Piece, Tokenizers, Version, encode

_log = logging.getLogger(__name__)
_TOKENS = {"cuda": 32768}
_PATIENCE, _TRIES = 10.0, 5
"""Seconds and failures, with no batch in between, after which an engine gives up."""
_PAUSE = 0.05
"""Seconds before it goes on after an error; doubled after each further error, half a second at most."""
_PAGING = 0.005
"""Seconds of paging between two batches, or half the time of the last batch if that is longer."""


class Engine:
    """Serves tasks by name."""

    def __init__(self, host: Host, library: Library, settings: Settings = Settings()):  # noqa: B008 - it is frozen
        self.host, self.library, self.settings = host, library, settings
        self.tokens = settings.tokens or _TOKENS.get(host.base.device.type, 4096)
        self._counters = Counters()
        self._change = threading.Condition()
        """Guards the fields below; notified when the engine's thread has something to do, and when an ask is closed."""
        self._served = ServedTasks()
        self._woken = False
        self._is_lingering = False
        self._accepts = False
        self._is_stopping = False
        self.failed: BaseException | None = None
        """The error that has ended its thread."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called in the engine's thread before an error ends it."""
        self.troubled = False
        """Whether it has just failed, and will try again."""
        self._failures: list[float] = []
        """The times of its failures since the last batch that ran."""
        self._thread: threading.Thread | None = None
        self._taken: list[Piece] = []
        """The batch under way."""
        sizes = (settings.resident, settings.remembered, settings.memory)
        self._pager = Pager(host, library, *sizes, self._wake, self._counters)
        self._scheduler = Scheduler(settings.queue, self.tokens, self._pager.__contains__)
        self._queue = self._scheduler.queue
        self._tokenizers = Tokenizers(host)
        self._runner = BatchRunner(host, self._tokenizers, self.tokens, self._counters, self._close)

    @property
    def ready(self) -> bool:
        """Whether asks are accepted."""
        return self._accepts and self._is_alive

    def start(self) -> None:
        """Warm up; returns when the engine accepts asks."""
        if self._thread is not None:
            raise InlayError("this engine has been started before; make a new one")
        warm = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, args=(warm,), name="inlay-engine", daemon=True)
        self._thread.start()
        warm.wait()
        if self.failed is not None:
            raise self.failed

    def stop(self, drain: bool = True, seconds: float = 30.0) -> None:
        """Accept no more asks, answer those that were accepted (not without `drain`, nor after `seconds`), and end.

        Asks that are still open then fail with Stopped. The adapters that were served are unloaded from the host.
        """
        with self._change:
            self._accepts = False
            if drain:
                self._change.wait_for(lambda: not self._served.open or not self._is_alive, seconds)
            self._is_stopping = True
            self._wake()
        if self._thread is not None:
            self._thread.join()
        with suppress(Exception) if self.failed is not None else nullcontext():
            self._pager.close()

    def submit(self, ask: Ask, deadline: float | None = None) -> Pending:
        """Encode an ask in this thread, and queue it.

        Args:
            deadline: on the clock of `time.monotonic`; an ask that has not begun by then fails with Late.

        Raises:
            Busy: the queue is full.
            Stopped: the engine does not run.
            InlayError: something is wrong with the ask, or its adapter.
        """
        with self._suggesting(ask.task), self._change:
            version = self._served.find(ask.task)
            self._admit(version)
            self._served.enter(version)
        try:
            item = encode(version, ask, self._tokenizers)
            item.cut(self.tokens)
            self._enqueue(item, deadline)
        except BaseException:
            self._leave([version])
            raise
        item.pending.add_done_callback(functools.partial(self._on_done, version, weakref.ref(item)))
        return item.pending

    def serve(self, name: str, ref: str | Entry, read: bool | None = None) -> Served:
        """Serve a version under a name, or switch to it: the version before answers the asks that it accepted.

        Args:
            ref: `sms` (the newest), `sms@3`, `sms@prod`, or an entry of the library.
            read: read the adapter first, so that one that cannot be used is an error here and changes nothing; None
                reads it if the engine runs.
        """
        entry = self.library.find(ref) if isinstance(ref, str) else ref
        version = Version.of(self.host, check_served(name), entry)
        if (too_large := self._too_large(version)) is not None:
            raise too_large
        try:
            for part in version.parts if (self.ready if read is None else read) else ():
                self._pager.read(part)
        except InlayError as error:
            raise version.own_error(error) from None
        with self._change:
            version = self._served.serve(version)
            self._wake()
        if self.ready:
            self._pager.want(version.parts, asked=False)
        return self._describe(version)

    def withdraw(self, name: str) -> None:
        """Stop serving a name; asks accepted before are still answered."""
        with self._change:
            self._served.withdraw(name)
            self._wake()

    def task(self, name: str) -> Served:
        """The task served under a name; or under a plain name, if it is at this `@version` or `@alias`."""
        with self._suggesting(name), self._change:
            version = self._served.find(name)
        return self._describe(version)

    def serves(self, task: str) -> bool:
        """Whether a task can be asked: by its name, or at this `@version` or `@alias`."""
        with self._change, suppress(SlotError):
            self._served.find(task)
            return True
        return False

    def tasks(self) -> list[Served]:
        """All tasks that are served now."""
        with self._change:
            versions = list(self._served.served.values())
        return [self._describe(version) for version in versions]

    def counts(self) -> Counts:
        """Counts since the start."""
        resident, remembered = self._pager.sizes()
        return replace(self._counters.counts(), waiting=len(self._queue), resident=resident, remembered=remembered)

    def listen(self, listener: Callable[[BatchDone], None]) -> None:
        """Call this after each batch, in the engine's thread: keep it short."""
        self._counters.listen(listener)

    @contextmanager
    def _suggesting(self, task: str) -> Iterator[None]:
        """Suggest names like an unknown one; without the lock, since comparing names takes a moment."""
        try:
            yield
        except Unknown as error:
            raise SlotError(f"{error}. {near(task[:100], tuple(self._served.served))}") from None

    def _admit(self, version: Version) -> None:
        if not self.ready:
            raise Stopped("the engine is not running")
        if self._queue.full(version):
            self._counters.add(refused=1)
            seconds = self._scheduler.seconds()
            raise Busy(f"{len(self._queue)} requests are waiting; try again in {seconds:.2g} s", seconds)
        error = self._error(version)
        if error is not None:
            raise error

    def _enqueue(self, item: Item, deadline: float | None) -> None:
        version = item.version
        with self._change:
            self._admit(version)
            self._counters.add(**{"hits" if self._pager.state(version.refs) == "bank" else "misses": 1})
            for i, piece in enumerate(item.pieces):
                self._queue.put(version, piece, piece.tokens, None if i else deadline)
            if not self._is_lingering or self._queue.cost >= self.tokens:
                self._wake()
        self._pager.want(version.parts)

    def _wake(self) -> None:
        with self._change:
            self._woken = True
            self._change.notify_all()

    def _on_done(self, version: Version, item_ref: weakref.ref[Item], pending: Future[Answer]) -> None:
        """Take a cancelled ask out of the queue. The reference is weak, so that a future keeps no rows and outputs."""
        if pending.cancelled():
            self._counters.add(cancelled=1)
            self._unqueue([item] if (item := item_ref()) is not None else [])
            self._leave([version])

    def _close(self, items: list[Item]) -> None:
        """Let go of asks that are about to be answered, or to fail."""
        self._unqueue(items)
        self._leave([item.version for item in items])

    def _unqueue(self, items: list[Item]) -> None:
        with self._change:
            for item in items:
                for piece in item.pieces:
                    self._queue.remove(piece)
                item.pieces = []

    def _leave(self, versions: list[Version]) -> None:
        with self._change:
            for version in versions:
                self._served.leave(version)
            self._wake()

    def _error(self, version: Version) -> InlayError | None:
        """Why a version cannot be used at the moment; a new error, since one that is raised often gathers frames."""
        error = next((error for ref in version.refs if (error := self._pager.error(ref)) is not None), None)
        return self._too_large(version) if error is None else version.own_error(error)

    def _too_large(self, version: Version) -> InlayError | None:
        """Why a version can never be used: the bank, which shrinks if memory runs out, cannot hold all its members."""
        count, room = len(version.refs), self._pager.resident
        reason = f"it has {count} members, and there is room for {room} (--resident)"
        return AdapterError(f"{version.ref} cannot be served: {reason}") if count > room else None

    def _describe(self, version: Version) -> Served:
        error = self._error(version)
        state, reason = self._pager.state(version.refs), None if error is None else str(error)
        return Served(version.name, version.entry.version, version.ref, version.entry.card, state, reason)

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run_thread(self, warm: threading.Event) -> None:
        """The engine's thread; all methods below run in it."""
        error: Exception = Stopped("the engine has stopped")
        try:
            self._runner.warm_up()
            self._prefetch()
            self._accepts = True
            warm.set()
            while not self._is_stopping:
                try:
                    self._turn()
                except Exception as failure:
                    self._recover(failure)
        except BaseException as failure:
            self._accepts = False  # before anyone sees the failure: a failed engine is never ready
            self.failed = failure
            error = Stopped(f"the engine has failed: {failure}")
            _log.critical("the engine has failed", exc_info=failure)
        finally:
            self._accepts = False
            self._abandon(error)
            if self.failed is not None and self.on_failure is not None and warm.is_set():
                self.on_failure(self.failed)
            warm.set()

    def _recover(self, error: Exception) -> None:
        """Go on after an error, or raise it if the base no longer runs, or errors keep coming."""
        self.troubled = True
        self._abandon(Stopped(f"the engine failed and is trying to recover: {error}"))
        self._failures.append(time.monotonic())
        gives_up = self._failures[-1] - self._failures[0] >= _PATIENCE and len(self._failures) >= _TRIES
        if gives_up or not self._runner.works():
            raise error
        _log.error("the engine failed and has recovered", exc_info=error)
        with self._change:
            self._change.wait_for(lambda: self._is_stopping, min(0.5, _PAUSE * 2 ** min(10, len(self._failures) - 1)))

    def _check(self, suspect: bool) -> None:
        """After errors that no ask can have caused: an error if the base no longer runs either."""
        if suspect and not self._runner.works():
            raise RunError("the base no longer runs on its device")

    def _prefetch(self) -> None:
        """Fill the bank with the first tasks, in the background."""
        with self._change:
            first = list(self._served.served.values())[: self.settings.resident]
        for version in first:
            self._pager.want(version.parts, asked=False)

    def _turn(self) -> None:
        with self._change:
            self._woken = False
        is_paging = self._page()
        with self._change:
            late = [piece.item for piece in self._queue.late(time.monotonic())]
            taken = self._scheduler.take()
        self._counters.add(late=self._runner.fail(late, Late("the deadline passed before it was its turn")))
        pieces = self._taken = [piece for piece in taken if piece.item.begin()]
        if pieces:
            self._run(pieces)
        self.troubled = False
        if not taken and not is_paging:
            self._sleep()

    def _page(self) -> bool:
        """Move adapters in and out of the bank; True if there is more to do at once."""
        with self._change:
            for ref in self._served.leaving():
                self._pager.drop(ref)
        is_paging = self._pager.load_some(self._served.waits, max(_PAGING, self._scheduler.last / 2))
        self._check(self._pager.suspect)
        for ref in self._pager.newly_broken():
            error = self._pager.error(ref) or InlayError(f"{ref} cannot be used")
            with self._change:
                errors = [(v, v.own_error(error) if ref in v.refs else self._too_large(v)) for v in self._queue.flows]
                failed = [(reason, self._queue.remove_flow(v)) for v, reason in errors if reason is not None]
            for reason, pieces in failed:
                self._runner.fail([piece.item for piece in pieces], reason)
        return is_paging

    def _run(self, pieces: list[Piece]) -> None:
        began = time.perf_counter()
        self._check(not self._runner.run(pieces))
        self._failures.clear()
        self._pager.used({ref for piece in pieces for ref in piece.item.version.refs})
        with self._change:
            self._scheduler.record(pieces, time.perf_counter() - began)

    def _sleep(self) -> None:
        """Wait until there is something to do, and a moment longer if that is an ask: more may come."""
        with self._change:
            while not self._woken:
                deadline = self._queue.next_deadline
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._change.wait(left)
            self._linger(time.monotonic() + self.settings.wait_ms / 1000)

    def _linger(self, end: float) -> None:
        self._is_lingering = True
        while self._accepts and 0 < self._queue.cost < self.tokens and (self._queue.next_deadline or end) >= end:
            if (left := end - time.monotonic()) <= 0:
                break
            self._change.wait(left)
        self._is_lingering = False

    def _abandon(self, error: Exception) -> None:
        """Fail all open asks."""
        with self._change:
            items = [piece.item for version in list(self._queue.flows) for piece in self._queue.remove_flow(version)]
            self._change.notify_all()
        self._runner.fail([*items, *(piece.item for piece in self._taken)], error)
        self._taken = []
