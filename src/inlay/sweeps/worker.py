"""What runs on a Ray worker: one host, one loop in a thread of its own, and messages in both directions.

The process that started the worker gives it orders and polls for events. If the worker dies, only the runs that it has
in hand are lost. Data travels as a reference that many orders share.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inlay.bank.delta import Method
from inlay.cluster import ray
from inlay.engine.host import Host
from inlay.errors import InlayError
from inlay.runs import packed
from inlay.runs.prepare import Prepared, Split
from inlay.sweeps.local import fields_of
from inlay.sweeps.store import ENDED
from inlay.tracking.events import Event
from inlay.training.job import Job
from inlay.training.loop import Loop
from inlay.training.memory import slots_for
from inlay.version import __version__

_POLL = 0.5
"""Seconds that a poll waits for something to happen."""
_GATHER = 0.05
"""Steps within this many seconds go into one answer; any other event goes out at once."""


@dataclass(frozen=True)
class Setup:
    """How a worker makes its host: equal to the one that prepared all trials."""

    base: str
    device: str
    dtype: torch.dtype
    weights: str | None
    compile: bool | None
    tokenizer: Any


@dataclass(frozen=True)
class Order:
    """A run without its data."""

    index: int
    label: str
    settings: dict[str, Any]
    method: Method
    key: int
    """The key of its data."""


@dataclass(frozen=True)
class Workload:
    """What a worker must know before its first order."""

    sizes: Sequence[Order]
    """As many runs as there may be, each as large as any that may come."""
    slots: int | None
    most: int
    """Its share: more at once would leave other workers idle."""
    asks: bool
    """Whether evaluations may end runs."""


def identity(host: Host) -> dict[str, str]:
    """What must be the same everywhere for the same results."""
    base = host.base
    return {
        "version of Inlay": __version__,
        "base": base.identity(True),
        "weights": base.form,
        "dtype": str(base.dtype),
    }


def portable(data: Prepared) -> Prepared:
    """Data that can leave this process."""
    return _each_part(data, packed.portable)


def _each_part(data: Prepared, change: Any) -> Prepared:
    def changed(part: Split | None) -> Any:
        return None if part is None else Split(part.examples, change(part.rows))

    names = ("train", "validation", "test", "text", "unlabelled")
    return replace(data, **{name: changed(getattr(data, name)) for name in names})


class Worker:
    """A Ray actor. Its methods return at once, except `open`, which loads the base, and `poll`, which may wait."""

    def __init__(self) -> None:
        self._data: dict[int, Prepared] = {}
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self._taken: list[Order] = []
        """By the index of their jobs on this worker."""

    def open(self, setup: Setup, work: Workload, data: Mapping[int, Any]) -> dict[str, Any]:
        """Load the base; the answer says what it is, and how many runs fit side by side, or has a `problem`."""
        answer: dict[str, Any] = {"node": ray().get_runtime_context().get_node_id(), "pid": os.getpid()}
        try:
            options = {"device": setup.device, "dtype": setup.dtype, "weights": setup.weights, "compile": setup.compile}
            self.host = Host(setup.base, **options)  # type: ignore[arg-type]
            self.host.base.tokenizer = setup.tokenizer
            answer["identity"] = identity(self.host)
            self._fetch(data)
            fit = work.slots or slots_for(self.host, [self._job(i, order) for i, order in enumerate(work.sizes)])
        except InlayError as error:
            return {**answer, "problem": str(error)}
        slots = max(1, min(fit, work.most))
        threading.Thread(target=self._live, args=(slots, work.asks), name="inlay-worker", daemon=True).start()
        return {**answer, "slots": slots}

    def give(self, orders: Sequence[Order], data: Mapping[int, Any]) -> None:
        """Let runs wait for slots."""
        self._fetch(data)
        for order in orders:
            self._orders.put(order)

    def judge(self, hopeless: Sequence[int]) -> None:
        """The answer to an event `judge`: which runs to end."""
        self._verdicts.put(hopeless)

    def poll(self) -> list[Event]:
        """What has happened since the last time."""
        events: list[Event] = []
        end = time.monotonic() + _POLL
        while (left := end - time.monotonic()) > 0:
            try:
                events.append(self._events.get(timeout=left))
            except queue.Empty:
                break
            end = min(end, time.monotonic() + (_GATHER if events[-1]["event"] == "step" else 0.0))
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def _fetch(self, data: Mapping[int, Any]) -> None:
        for key, reference in data.items():
            if key not in self._data:
                self._data[key] = _each_part(ray().get(reference), packed.arrived)

    def _job(self, index: int, order: Order) -> Job:
        data = self._data[order.key]
        run = data.run.model_copy(update=order.settings)
        return Job(index, order.label, replace(data, run=run, method=order.method), is_compared=True)

    def _live(self, slots: int, asks: bool) -> None:
        """The loop's thread. An error here is not the fault of settings: the worker cannot be used any more."""
        try:
            first = [self._take(0, self._orders.get())]
            while len(first) < slots and not self._orders.empty():
                first.append(self._take(len(first), self._orders.get()))
            self._loop = Loop(
                self.host,
                first,
                slots=slots,
                callbacks=[self._hear],
                source=self._next,
                prune=self._prune if asks else None,
            )
            self._loop.run()
        except BaseException as error:
            why = "".join(traceback.format_exception_only(error)).strip()
            self._events.put({"event": "broken", "problem": why})

    def _take(self, index: int, order: Order) -> Job:
        self._taken.append(order)
        return self._job(index, order)

    def _next(self, index: int) -> Job | None:
        """The next order, if there is one; a loop with nothing to do waits for it."""
        if self._orders.empty() and self._loop.active:
            return None
        return self._take(index, self._orders.get())

    def _prune(self, active: Sequence[Job]) -> list[Job]:
        self._events.put({"event": "judge", "active": [self._taken[job.index].index for job in active]})
        hopeless = set(self._verdicts.get())
        return [job for job in active if self._taken[job.index].index in hopeless]

    def _hear(self, event: Event) -> None:
        if "index" not in event:
            self._events.put(event)
            return
        job, order = self._loop.jobs[event["index"]], self._taken[event["index"]]
        message = {**event, "index": order.index}
        if event["event"] in ENDED:
            adapter = self._loop.adapters.pop(job.index, None)
            message["fields"] = fields_of(self.host, job, adapter)
            message["adapter"] = None if adapter is None else adapter.content()
        self._events.put(message)
