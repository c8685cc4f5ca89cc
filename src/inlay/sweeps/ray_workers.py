"""The workers of a sweep on a Ray cluster, as seen from the process that started them: hired, heard, and replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from inlay import cluster
from inlay.base.load import load_tokenizer
from inlay.engine.host import Host
from inlay.errors import RunError, first_line
from inlay.sweeps.worker import Order, Setup, Worker, Workload, identity, portable
from inlay.tracking.events import Event
from inlay.training.job import Job

_PATIENCE = 300.0
"""Seconds without any worker after which a sweep gives up."""
_TRIES = 3
"""Workers that may die in a row before they have begun."""


@dataclass(eq=False)
class WorkerHandle:
    """One worker."""

    actor: Any
    waits: Any
    """The answer that is awaited next."""
    node: str = ""
    slots: int = 0
    """Runs side by side; 0 until it is ready."""
    hand: list[int] = field(default_factory=list)
    """Runs that it has been given and that have not ended."""
    data: set[int] = field(default_factory=set)
    gifts: list[Any] = field(default_factory=list)
    """Calls that have not returned; if one fails, the worker never begins with those runs."""


@dataclass(frozen=True)
class LostWorker:
    """A worker that has died."""

    member: WorkerHandle
    why: str
    in_place: bool
    """Whether its machine lives: then one of its runs may have killed it."""


class RayWorkers:
    """Workers with the base of one host."""

    def __init__(self, ray: Any, host: Host, workers: int | None):
        self.ray, self.host = ray, host
        self.share = cluster.share(ray, workers)
        self.members: list[WorkerHandle] = []
        self._data: dict[int, Any] = {}
        """Data by its key, each put into Ray's store once."""
        self._stillborn = 0
        self._since = time.monotonic()

    @property
    def ready(self) -> list[WorkerHandle]:
        """Workers that can be given runs."""
        return [member for member in self.members if member.slots]

    @contextmanager
    def running(self, jobs: Sequence[Job], slots: int | None, asks: bool) -> Iterator[None]:
        """Workers run until the end of the block.

        Args:
            jobs: as many runs as there may be, each as large as any that may come.
            slots: runs side by side on one worker; by default as many as fit, and no more than its share of them.
            asks: whether evaluations may end runs.
        """
        base, count = self.host.base, min(self.share.workers, len(jobs))
        name = os.path.abspath(base.name) if os.path.isdir(base.name) else base.name
        options_of_base = (base.dtype, base.form or None, self.host.compile)
        setup = Setup(name, "cuda" if self.share.gpus else "cpu", *options_of_base, load_tokenizer(base))
        sizes = [self._order(i, job) for i, job in enumerate(jobs)]
        self._opening = self.ray.put(setup), self.ray.put(Workload(sizes, slots, -(-len(jobs) // count), asks))
        # on all machines in turn; Ray restarts none by itself: only this process knows what a worker had to do
        options = {**self.share.options, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = self.ray.remote(**options)(Worker)
        try:
            for _ in range(count):
                self._start_worker()
            yield
        finally:
            for member in self.members:
                self.ray.kill(member.actor)

    def give(self, member: WorkerHandle, jobs: Mapping[int, Job]) -> None:
        """Let a worker make runs: number -> job."""
        orders = [self._order(index, job) for index, job in jobs.items()]
        new = {order.key for order in orders} - member.data
        member.data |= new
        member.hand += jobs
        member.gifts.append(member.actor.give.remote(orders, {key: self._data[key] for key in new}))

    def events(self) -> Iterator[tuple[WorkerHandle, Event] | LostWorker]:
        """What happens within a second: events of workers, and workers that have died, which are replaced."""
        waits = {member.waits: member for member in self.members}
        for reference in self.ray.wait(list(waits), timeout=1.0)[0]:
            member = waits[reference]
            try:
                answer = self.ray.get(reference)
                self._check_gifts(member)
            except self.ray.exceptions.RayError as error:
                yield self._lose(member, first_line(error))
                continue
            if not member.slots:
                self._join(member, answer)
                answer = [{"event": "joined", **{key: answer[key] for key in ("node", "pid", "slots")}}]
            for event in answer:
                yield (member, event) if event["event"] != "broken" else self._lose(member, event["problem"])
            member.waits = member.actor.poll.remote() if member in self.members else None
        self._since = time.monotonic() if self.ready else self._since
        if time.monotonic() - self._since > _PATIENCE:
            resources = ", ".join(f"{count:g} {name[4:].upper()}" for name, count in self.share.options.items())
            raise RunError(f"for {_PATIENCE:.0f} s the Ray cluster had no room for a worker ({resources})")

    def _check_gifts(self, member: WorkerHandle) -> None:
        if member.gifts:
            done, member.gifts = self.ray.wait(member.gifts, num_returns=len(member.gifts), timeout=0)
            self.ray.get(done)

    def _start_worker(self) -> None:
        actor = self._actor.remote()
        self.members.append(
            WorkerHandle(actor, actor.open.remote(*self._opening, dict(self._data)), data=set(self._data))
        )

    def _join(self, member: WorkerHandle, answer: Mapping[str, Any]) -> None:
        """A worker is ready; an error if it cannot be used."""
        where = f"the Ray worker on node {answer['node'][:8]} cannot be used"
        if "problem" in answer:
            raise RunError(f"{where}: {answer['problem']}")
        for fact, mine in identity(self.host).items():
            if (its := answer["identity"][fact]) != mine:
                raise RunError(f"{where}: its {fact} is {its or 'plain'}, here it is {mine or 'plain'}")
        member.node, member.slots, self._stillborn = answer["node"], answer["slots"], 0

    def _lose(self, member: WorkerHandle, why: str) -> LostWorker:
        """Remove a worker and start another in its place."""
        self.members.remove(member)
        with suppress(Exception):
            self.ray.kill(member.actor)
        self._stillborn += not member.slots
        if self._stillborn < _TRIES:
            self._start_worker()
        elif not self.members:
            raise RunError(f"no Ray worker could be started: {why}")
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        return LostWorker(member, why, member.node in alive)

    def _order(self, index: int, job: Job) -> Order:
        data = job.data
        key = id(data.train)  # the same for runs that share one reading of the data, and alive as long as they are
        if key not in self._data:
            self._data[key] = self.ray.put(portable(data))
        return Order(index, job.name, data.run.model_dump(exclude={"data"}), data.method, key)
