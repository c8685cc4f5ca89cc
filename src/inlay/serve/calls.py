"""One call on its way through the engine: its asks are submitted, awaited and cancelled together.

Either all asks of a call are queued or none: a call that does not fit the queue is refused as a whole (429). A waiting
request is woken once for a call, not for each answer. Asks of a client that has gone are taken out of the queue.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from inlay.errors import DamagedError, InlayError, LibraryError, RunError, SlotError
from inlay.serve.bodies import Item, problem
from inlay.serve.engine_types import Ask, Busy, Late, Pending, Stopped
from inlay.serve.limits import Limits, Refused, not_ready

if TYPE_CHECKING:
    from inlay.serve.engine import Engine

Answer = dict[str, Any]
_INLINE = 4096
"""Characters that are tokenised in the event loop; more would hold up other calls, and go to a thread."""
_FEW = 16
"""Asks that are submitted in the event loop."""
_SHORT = 0.05
"""Seconds of waiting before it also watches whether the client disconnects."""
_SLACK = 0.25
"""Seconds beyond the deadline for the engine itself to fail what is late."""
_LATE = "the deadline of this call has passed"
_KINDS: dict[type[InlayError], tuple[int, str]] = {
    Busy: (429, "busy"),
    Late: (504, "late"),
    Stopped: (503, "not_ready"),
    SlotError: (404, "unknown_task"),
    DamagedError: (409, "damaged"),
    LibraryError: (404, "not_found"),
    RunError: (503, "refused"),
    InlayError: (422, "refused"),
}
"""Error class -> HTTP status and type; a class stands before its parents."""


@dataclass
class Place:
    """One ask, its place in the call, and its outcome."""

    item: int
    task: str | None
    """None if the item was for a single task."""
    ask: Ask | None = None
    outcome: Future[Answer] | InlayError | None = None


@dataclass
class Call:
    """All asks of one call."""

    places: list[Place]
    grouped: list[bool]
    """For every item, whether it was for several tasks."""
    deadline: float
    """On the monotonic clock."""
    size: int = 0
    """Characters of all asks."""
    began: float = field(default_factory=time.perf_counter)
    bugs: list[BaseException] = field(default_factory=list)
    """Unexpected errors; known once there are results."""

    @property
    def asks(self) -> list[Ask]:
        """The asks for the engine."""
        return [place.ask for place in self.places if place.ask is not None]

    @property
    def futures(self) -> list[Future[Answer]]:
        """The asks that were accepted."""
        return [place.outcome for place in self.places if isinstance(place.outcome, Future)]

    @property
    def is_small(self) -> bool:
        """Whether the event loop can handle it without holding up other calls."""
        return self.size <= _INLINE and len(self.places) <= _FEW

    @property
    def ms(self) -> float:
        """Milliseconds since it began."""
        return round(1000 * (time.perf_counter() - self.began), 3)

    @property
    def batch(self) -> int:
        """How many asks, from all clients, ran in the largest batch that this call was part of."""
        return max((future.batch for future in self.futures if isinstance(future, Pending)), default=0)

    def cancel(self) -> None:
        """Cancel the asks that are not answered."""
        for future in self.futures:
            future.cancel()

    def result(self, place: Place) -> Answer:
        """The answer of a place, or its error."""
        if not isinstance(place.outcome, Future):
            return problem(*describe(place.outcome)[1:])
        try:
            return place.outcome.result(timeout=0)
        except (Exception, CancelledError) as error:
            _, kind, message = describe(error)
            if kind == "internal":
                self.bugs.append(error)
            return problem(kind, message)

    def results(self) -> list[Answer]:
        """In the order of the items; the answers of several tasks to one item together.

        Raises:
            Refused: if all asks were too late (504), met an unexpected error (500), or an engine that stopped (503).
        """
        results: list[Answer] = [{"results": {}} if grouped else {} for grouped in self.grouped]
        problems: list[Answer] = []
        for place in self.places:
            result = self.result(place)
            problems.append(result.get("error", {}))
            if place.task is None:
                results[place.item] = result
            else:
                results[place.item]["results"][place.task] = result
        for kind, status in (("late", 504), ("internal", 500), ("not_ready", 503)):
            if problems and all(p.get("type") == kind for p in problems):
                raise Refused(status, kind, problems[0]["message"])
        return results


def plan(items: Sequence[Item | Refused], served: Callable[[], Sequence[str]], limits: Limits, seconds: float) -> Call:
    """The asks of a call, before they are submitted."""
    places: list[Place] = []
    served, size = functools.cache(served), 0
    for i, item in enumerate(items):
        if isinstance(item, Refused):
            places.append(Place(i, None, outcome=item))
            continue
        tasks = item.task_names(served)
        size += item.characters * len(tasks)
        if len(places) + len(tasks) > limits.answers:
            raise Refused(413, "too_large", f"this call requests more than the {limits.answers:,} answers allowed")
        if size > limits.echoed:
            reason = f"the answers to this call would repeat more than {limits.echoed:,} characters of text"
            raise Refused(413, "too_large", f"{reason}: send fewer tasks at once, or shorter texts")
        places += [Place(i, None if item.tasks is None else ask.task, ask) for ask in item.asks(tasks)]
    grouped = [isinstance(item, Item) and item.tasks is not None for item in items]
    return Call(places, grouped, time.monotonic() + seconds, size)


async def submit(engine: Engine, call: Call) -> None:
    """Submit all asks to the engine, or none."""
    if not engine.ready:
        raise not_ready()
    if call.is_small:
        _submit(engine, call)
    else:
        await asyncio.to_thread(_submit, engine, call)


async def finish(call: Call, request: Request) -> None:
    """Wait until all asks are answered, the time is up, or the client has gone."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    _when_all(call.futures, lambda: _from_thread(loop, _settle, done))
    try:
        if not (await asyncio.wait({done}, timeout=min(_SHORT, _left(call))))[0]:
            await _done_or_gone(done, request, _left(call))
    finally:
        call.cancel()


async def stream(call: Call) -> AsyncIterator[tuple[Place, Answer]]:
    """Every answer as it comes."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[Place] = asyncio.Queue()
    waiting = [place for place in call.places if isinstance(place.outcome, Future)]
    for place in waiting:
        assert isinstance(place.outcome, Future)
        place.outcome.add_done_callback(functools.partial(_on_done, loop, ready, place))
    try:
        for place in call.places:
            if not isinstance(place.outcome, Future):
                yield place, call.result(place)
        left = {id(place): place for place in waiting}
        while left:
            try:
                place = await asyncio.wait_for(ready.get(), _left(call))
            except TimeoutError:
                break
            del left[id(place)]
            yield place, call.result(place)
        for place in left.values():
            yield place, problem("late", _LATE)
    finally:
        call.cancel()


def describe(error: BaseException | None) -> tuple[int, str, str]:
    """The HTTP status, the type and the message for an error."""
    if isinstance(error, Refused):
        return error.status, error.kind, str(error)
    if isinstance(error, CancelledError | TimeoutError):  # cancelled here, since the time was up
        return 504, "late", _LATE
    kind = next((kind for cls, kind in _KINDS.items() if isinstance(error, cls)), None)
    return (500, "internal", "this could not be answered") if kind is None else (*kind, str(error))


def _submit(engine: Engine, call: Call) -> None:
    try:
        for place in call.places:
            if place.ask is None:
                continue
            try:
                place.outcome = engine.submit(place.ask, call.deadline)
            except Busy as busy:
                raise Refused(429, "busy", str(busy), busy.retry_after) from None
            except Stopped:
                raise not_ready() from None
            except InlayError as error:
                place.outcome = error
    except BaseException:
        call.cancel()
        raise


async def _done_or_gone(done: asyncio.Future[Any], request: Request, seconds: float) -> None:
    # the body is read, so the next message can only be that the client has gone
    gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({done, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not done.done():
            raise Refused(499, "gone", "the client has disconnected")
    finally:
        gone.cancel()


def _when_all(futures: Sequence[Future[Answer]], callback: Callable[[], None]) -> None:
    left, lock = len(futures), threading.Lock()
    if not left:
        callback()

    def count_down(_: Future[Answer]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            callback()

    for future in futures:
        future.add_done_callback(count_down)


def _from_thread(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)


def _on_done(loop: asyncio.AbstractEventLoop, ready: asyncio.Queue[Place], place: Place, _: object) -> None:
    _from_thread(loop, ready.put_nowait, place)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _left(call: Call) -> float:
    return max(0.0, call.deadline + _SLACK - time.monotonic())
