"""What runs on a Ray worker: one host, one loop in a thread of its own, and messages in both directions.

Whoever started the worker gives it orders and polls for what has happened; nothing else is needed to drive it, and
nothing is lost with it but the runs that it has in hand. Data travels as a reference that many orders share.
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
"""Steps are told together: what is said within so many seconds goes into one answer, unless it is urgent."""


@dataclass(frozen=True)
class Setup:
    """How a worker makes its host: as the one that all trials were prepared with."""

    base: str
    device: str
    dtype: torch.dtype
    weights: str | None
    compile: bool | None
    tokenizer: Any


@dataclass(frozen=True)
class Order:
    """A run to be made, without its data."""

    index: int
    label: str
    settings: dict[str, Any]
    method: Method
    key: int
    """Of its data."""


@dataclass(frozen=True)
class Workload:
    """What a worker must know before its first order."""

    sizes: Sequence[Order]
    """Runs as large as any that may come, as many as there may be."""
    slots: int | None
    most: int
    """Its share: more at once would leave other workers idle."""
    asks: bool
    """Whether somebody decides after evaluations which runs to end."""


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
    """A Ray actor. Its methods return at once, but for `open`, which loads the base, and `poll`, which may wait."""

    def __init__(self) -> None:
        self._data: dict[int, Prepared] = {}
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self._taken: list[Order] = []
        """By the index of their jobs here."""

    def open(self, setup: Setup, work: Workload, data: Mapping[int, Any]) -> dict[str, Any]:
        """Load the base; what it is, and how many runs fit side by side. `problem` says why it cannot be used."""
        found: dict[str, Any] = {"node": ray().get_runtime_context().get_node_id(), "pid": os.getpid()}
        try:
            how = {"device": setup.device, "dtype": setup.dtype, "weights": setup.weights, "compile": setup.compile}
            self.host = Host(setup.base, **how)  # type: ignore[arg-type]
            self.host.base.tokenizer = setup.tokenizer
            found["identity"] = identity(self.host)
            self._fetch(data)
            fit = work.slots or slots_for(self.host, [self._job(i, order) for i, order in enumerate(work.sizes)])
        except InlayError as error:
            return {**found, "problem": str(error)}
        slots = max(1, min(fit, work.most))
        threading.Thread(target=self._live, args=(slots, work.asks), name="inlay-worker", daemon=True).start()
        return {**found, "slots": slots}

    def give(self, orders: Sequence[Order], data: Mapping[int, Any]) -> None:
        """Let runs wait for slots."""
        self._fetch(data)
        for order in orders:
            self._orders.put(order)

    def judge(self, hopeless: Sequence[int]) -> None:
        """The answer to `judge`: which runs to end."""
        self._verdicts.put(hopeless)

    def poll(self) -> list[Event]:
        """What has happened since the last time."""
        found: list[Event] = []
        end = time.monotonic() + _POLL
        while (left := end - time.monotonic()) > 0:
            try:
                found.append(self._said.get(timeout=left))
            except queue.Empty:
                break
            end = min(end, time.monotonic() + (_GATHER if found[-1]["event"] == "step" else 0.0))
        while not self._said.empty():
            found.append(self._said.get())
        return found

    def _fetch(self, data: Mapping[int, Any]) -> None:
        for key, reference in data.items():
            if key not in self._data:
                self._data[key] = _each_part(ray().get(reference), packed.arrived)

    def _job(self, index: int, order: Order) -> Job:
        data = self._data[order.key]
        run = data.run.model_copy(update=order.settings)
        return Job(index, order.label, replace(data, run=run, method=order.method), is_compared=True)

    def _live(self, slots: int, asks: bool) -> None:
        """The loop's thread. Whatever goes wrong here is not the fault of settings: the worker is of no more use."""
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
            self._said.put({"event": "broken", "problem": why})

    def _take(self, index: int, order: Order) -> Job:
        self._taken.append(order)
        return self._job(index, order)

    def _next(self, index: int) -> Job | None:
        """Another run if one is ordered; a loop that has nothing to do waits for one."""
        if self._orders.empty() and self._loop.active:
            return None
        return self._take(index, self._orders.get())

    def _prune(self, active: Sequence[Job]) -> list[Job]:
        self._said.put({"event": "judge", "active": [self._taken[job.index].index for job in active]})
        hopeless = set(self._verdicts.get())
        return [job for job in active if self._taken[job.index].index in hopeless]

    def _hear(self, event: Event) -> None:
        if "index" not in event:
            self._said.put(event)
            return
        job, order = self._loop.jobs[event["index"]], self._taken[event["index"]]
        told = {**event, "index": order.index}
        if event["event"] in ENDED:
            adapter = self._loop.adapters.pop(job.index, None)
            told["fields"] = fields_of(self.host, job, adapter)
            told["adapter"] = None if adapter is None else adapter.content()
        self._said.put(told)
