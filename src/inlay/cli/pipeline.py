"""Rows to answers, in parts, so that the model never waits: two threads work beside it, one ahead and one behind.

    ahead: read a part, and encode it  ->  here: run it  ->  behind: decode it, lay it out, write it

Parts stay in order, and at most one waits between two stages: memory does not grow with the input. Whatever a stage
raises ends all of them and is raised here, once. Parts before one that could not be read are finished first.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from inlay.cli.named_adapters import Predictor
    from inlay.cli.predict_input import InputRow
    from inlay.cli.predict_job import PredictJob
    from inlay.tasks import Answer

T = TypeVar("T")
_END = object()
_SWITCH = 5e-4
"""Seconds that a thread may hold the interpreter while another waits. The model's thread asks for it at every call
of torch, and with the usual 5 ms may wait longer than it works."""
_OBJECTS = 200_000
"""New objects before the garbage collector looks for cycles. Parts under way hold about as many, without cycles."""

Finish = Callable[[int, "list[InputRow]", "Sequence[Answer] | None"], None]
"""Takes a part's number, rows and answers, every adapter's to every row; None if the part was done before."""


def answer_all(
    host: Predictor, job: PredictJob, finish: Finish, done: Callable[[int], bool] = lambda number: False
) -> None:
    """Answer every part that is not done, and finish all of them, in order."""

    def encode() -> Iterator[tuple[int, list[InputRow], Any]]:
        for number, rows in enumerate(job.parts()):
            yield number, rows, None if done(number) else host.encode(job.requests(rows))

    def finish_part(part: tuple[int, list[InputRow], Any, Any]) -> None:
        number, rows, encoded, ran = part
        finish(number, rows, None if encoded is None else job.every(rows, host.decode(encoded, ran)))

    with _undisturbed(), ReadAhead(encode(), job.texts.waits) as parts, WriteBehind(finish_part) as rest:
        for number, rows, encoded in parts:
            rest.give((number, rows, encoded, None if encoded is None else host.run(encoded)))


class ReadAhead(Generic[T]):
    """The items of an iterable, taken from it in a thread of its own, one item ahead of the consumer."""

    def __init__(self, items: Iterable[T], here: bool = False):
        """
        Args:
            here: use no thread; a thread that waits for a terminal or a pipe could not be ended.
        """
        self._items, self._left = items, False
        self._ready: queue.Queue[Any] = queue.Queue(1)
        self._error: BaseException | None = None
        self._thread = None if here else threading.Thread(target=self._take, name="inlay ahead", daemon=True)

    def _take(self) -> None:
        try:
            for item in self._items:
                self._ready.put(item)
                if self._left:
                    return
        except BaseException as error:
            self._error = error
        self._ready.put(_END)

    def __iter__(self) -> Iterator[T]:
        if self._thread is None:
            yield from self._items
            return
        while (item := self._ready.get()) is not _END:
            yield item
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        while self._thread is not None and self._thread.is_alive():
            try:
                self._ready.get(timeout=0.01)  # the thread may wait for room
            except queue.Empty:
                continue


class WriteBehind(Generic[T]):
    """Work on items in a thread of its own, in their order; the producer is one item ahead."""

    def __init__(self, work: Callable[[T], None]):
        self._work = work
        self._items: queue.Queue[Any] = queue.Queue(1)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inlay behind", daemon=True)

    def _run(self) -> None:
        while (item := self._items.get()) is not _END:
            if self._error is not None:
                continue  # the producer must not wait for ever
            try:
                self._work(item)
            except BaseException as error:
                self._error = error

    def give(self, item: T) -> None:
        """Queue an item; raises what the work on an earlier one raised."""
        if self._error is not None:
            raise self._error
        self._items.put(item)

    def _finish(self) -> None:
        """Finish the items that were given, whatever has happened since."""
        self._items.put(_END)
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._finish()
        except KeyboardInterrupt:
            self._finish()  # else it would write while the caller cleans up
            raise
        if error is None and self._error is not None:
            raise self._error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Threads take turns often; the garbage collector leaves the model alone, and looks at rows seldom."""
    from inlay.training.gc_frozen import gc_frozen

    switch, (first, *others) = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(min(switch, _SWITCH))
    gc.set_threshold(first and max(first, _OBJECTS), *others)  # 0: it is turned off
    try:
        with gc_frozen():
            yield
    finally:
        gc.set_threshold(first, *others)
        sys.setswitchinterval(switch)
