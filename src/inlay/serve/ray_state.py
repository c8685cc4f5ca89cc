"""What was chosen while a service of several replicas ran: kept by a Ray actor, and followed by all replicas.

A replica that is asked to serve another version (or to stop serving a task) does so itself, tells the actor, and then
confirms; the others wait at the actor and learn of it at once. If two replicas change two tasks at the same time, both
changes are kept, since replicas send changes, not states.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay import cluster
from inlay.errors import RunError, first_line
from inlay.serve.watch import Choices

if TYPE_CHECKING:
    from inlay.serve.app import Service

NAME, NAMESPACE = "inlay-choices", "inlay"
_WAIT = 2.0
"""Seconds that a replica waits at the actor before it asks again and reports its metrics."""
_TIMEOUT = 10.0
"""Seconds for the actor to answer."""
_OLD = 30.0
"""Seconds after which the metrics of a replica are dropped: it has gone."""
_AGAIN = 1.0
"""Seconds until an actor that cannot be reached is tried again."""
Change = Mapping[str, str | None]
"""Name -> the ref that was put; empty if it was taken away, None for the default."""


@dataclass(frozen=True)
class State:
    """All choices; later ones have a higher number."""

    number: int
    put: dict[str, str]
    taken: list[str]
    problem: str = ""
    """Why a change could not be kept; nothing has changed then."""


class StateActor:
    """The Ray actor that keeps choices and metrics."""

    def __init__(self, path: Path | None):
        self._choices = Choices.read(path)
        self._number = time.time_ns()  # higher than that of any earlier actor
        self._changed = asyncio.Event()
        self._measured: dict[str, tuple[float, Any]] = {}

    async def state(self) -> State:
        """The current state."""
        return State(self._number, dict(self._choices.put), list(self._choices.taken))

    async def change(self, changes: Change) -> State:
        """Make the changes of a replica; returns the state after them."""
        choices = self._choices
        try:
            with choices.changing(lambda: None):
                for name, ref in changes.items():
                    choices.choose(name, ref)
        except RunError as error:
            return State(self._number, dict(choices.put), list(choices.taken), str(error))
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return await self.state()

    async def after(self, number: int, seconds: float) -> State | None:
        """The state once it differs from this one; None if nothing changes within the time."""
        changed = self._changed
        if self._number == number:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), seconds)
        return await self.state() if self._number != number else None

    async def report(self, replica: str, measured: Any) -> None:
        """Note the metrics of a replica."""
        self._measured[replica] = time.monotonic(), measured

    async def reports(self) -> dict[str, Any]:
        """The metrics of every replica."""
        since = time.monotonic() - _OLD
        self._measured = {name: report for name, report in self._measured.items() if report[0] >= since}
        return {name: measured for name, (_, measured) in self._measured.items()}


def find_state_actor() -> Any:
    """The actor of this cluster."""
    return cluster.ray().get_actor(NAME, namespace=NAMESPACE)


@dataclass
class SharedChoices(Choices):
    """Choices that are kept by the actor."""

    number: int = 0
    _synced: dict[str, str | None] = field(default_factory=dict)
    """The choices as the actor has them."""

    def take_up(self, state: State) -> bool:
        """Take over a state of the actor, unless it is older than the last one."""
        if state.number < self.number:
            return False
        self.put, self.taken, self.number = dict(state.put), list(state.taken), state.number
        self._synced = self._all()
        return True

    def keep(self) -> None:
        """Tell the actor what has changed here."""
        now, before = self._all(), self._synced
        changes = {name: now.get(name) for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        try:
            state: State = cluster.ray().get(find_state_actor().change.remote(changes), timeout=_TIMEOUT)
        except Exception as error:  # Ray's, of many kinds
            reason = first_line(error)
            raise RunError(f"nothing was changed: the other replicas could not be told ({reason}); try again") from None
        self.take_up(state)
        if state.problem:
            raise RunError(state.problem)

    def _all(self) -> dict[str, str | None]:
        return {**dict.fromkeys(self.taken, ""), **self.put}


class Follower:
    """A thread that waits at the actor, makes the changes of other replicas here, and reports metrics."""

    def __init__(self, service: Service, choices: SharedChoices, replica: str):
        self.service, self.choices, self.replica = service, choices, replica
        service.metrics.everyone = self.measured
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inlay-follow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; later changes are ignored."""
        self._end.set()

    def measured(self) -> dict[str, Any]:
        """The metrics of all replicas: of this one now, of the others as of their last report."""
        here = {self.replica: self.service.metrics.families()}
        try:
            return {**cluster.ray().get(find_state_actor().reports.remote(), timeout=_TIMEOUT), **here}
        except Exception:  # without the actor there is still this one
            return here

    def _run(self) -> None:
        number, before = self.choices.number, ""
        while not self._end.is_set():
            try:
                state = cluster.ray().get(find_state_actor().after.remote(number, _WAIT))
                if state is not None and not self._end.is_set():
                    for note in self.service.catalogue.adopt(functools.partial(self.choices.take_up, state)):
                        self.service.log.problem(note)
                    number = state.number
                find_state_actor().report.remote(self.replica, self.service.metrics.families())
                before = ""
            except Exception as error:  # the actor may be restarting: what is served stays
                problem = first_line(error)
                if problem != before:
                    self.service.log.problem(problem)
                before = problem
                self._end.wait(_AGAIN)
