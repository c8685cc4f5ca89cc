"""The Ray engine: packs of trials on the workers of a cluster, each with a base and a loop of its own.

Only this process writes the file. A run counts once its adapter and then its row are written here, so the loss of a
worker, a machine or this process costs only the runs that were under way; they start over.

Which run of a pack has killed its worker cannot be seen from outside. So after a death its runs continue in packs of
half the size; a run whose worker dies again while the run is alone on it is recorded as failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inlay import cluster
from inlay.engine.host import Host
from inlay.errors import RunError, suggest
from inlay.library.adapter import Adapter
from inlay.sweeps.local import Local, fields_of, open_trials
from inlay.sweeps.ray_workers import LostWorker, RayWorkers, WorkerHandle
from inlay.sweeps.search import OptunaSearch
from inlay.sweeps.store import ENDED, Store
from inlay.sweeps.trial import Trial
from inlay.tracking.events import Callback, Event
from inlay.training.checkpoint import Checkpoint
from inlay.training.job import Job

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Cluster:
    """Where to run: a cluster, and how many workers of it."""

    address: str | None = None
    workers: int | None = None

    def problems(self, host: Host) -> list[str]:
        """What can be seen to be wrong before anything is started."""
        problems = cluster.problems(self.address)
        if host.base.folder is None:
            problems.append(
                "a model that was given as an object is in this process alone: save it to a folder that all machines "
                "of the Ray cluster see, and load it from there"
            )
        return problems


def read_engine(
    engine: str, address: str | None = None, workers: int | None = None
) -> tuple[Cluster | None, list[str]]:
    """Where to run (None: here), and what is wrong with these settings."""
    problems = []
    if engine not in ENGINES:
        problems.append(f"unknown engine {engine!r}. {suggest(engine, ENGINES)}")
    if workers is not None and workers < 1:
        problems.append(f"workers={workers} is not valid: expected 1 or more")
    if engine == "local" and (address is not None or workers is not None):
        problems.append(f"{'address' if address is not None else 'workers'} needs the engine ray (--engine ray)")
    return (Cluster(address, workers) if engine == "ray" else None), problems


def make_engine(
    host: Host,
    store: Store,
    cluster: Cluster | None,
    slots: int | None,
    callbacks: Sequence[Callback],
    save_every: float,
) -> Local | Ray:
    """What runs trials: on a cluster, or here."""
    if cluster is None:
        return Local(host, store, slots=slots, callbacks=callbacks, save_every=save_every)
    return Ray(host, store, cluster, slots=slots, callbacks=callbacks)


class Ray:
    """Runs trials on a cluster and stores their results; used as `Local` is."""

    def __init__(
        self, host: Host, store: Store, where: Cluster, *, slots: int | None = None, callbacks: Sequence[Callback] = ()
    ):
        """
        Args:
            slots: runs side by side on one worker.
        """
        self.host, self.store, self.where, self.slots, self.callbacks = host, store, where, slots, callbacks
        self.trials: list[Trial] = []
        """By the index in events."""
        self._jobs: list[Job] = []
        """What is known here of the runs on workers."""
        self._queue: list[int] = []
        self._search: OptunaSearch | None = None
        self._is_exhausted = True
        """Whether the search has no more trials."""
        self._deaths: Counter[int] = Counter()
        self._packs: dict[int, int] = {}
        """The largest pack that a run may be in, if a worker of it has died."""
        self._interrupted = False

    def run(
        self, trials: Sequence[Trial], search: OptunaSearch | None = None, keep: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Run trials until all have ended; as `Local.run`."""
        self._search, self._is_exhausted = search, search is None
        self._take_over()
        opened = open_trials(self.store, trials)
        if search is not None:
            search.begin([], opened)
        else:
            self._queue = [self._enter(trial) for trial in opened]
        if search is not None or opened:
            with cluster.joined(self.where.address) as ray:
                self._work(RayWorkers(ray, self.host, self.where.workers))
        self.store.forget(but=set(keep()))
        self.store.tidy()

    def _work(self, workers: RayWorkers) -> None:
        sizes = self._jobs if self._search is None else self._search.largest()
        with workers.running(list(sizes), self.slots, self._search is not None):
            share = workers.share
            self._tell({"event": "workers", "workers": len(workers.members), "nodes": share.nodes, "gpus": share.gpus})
            while self._queue or not self._is_exhausted or any(member.hand for member in workers.members):
                for heard in workers.events():
                    if isinstance(heard, LostWorker):
                        self._lose(heard)
                    else:
                        self._hear(*heard)
                if self._interrupted:
                    raise KeyboardInterrupt
                self._deal(workers)

    def _take_over(self) -> None:
        """Take over from a local loop: adapters of finished runs are kept, runs under way start over."""
        if self.store.folder is None:
            return
        checkpoint = Checkpoint(self.store.folder / "loop")
        order: list[str] = self.store.about("loop", [])
        done = {row.id for row in self.store.rows(order) if row.state == "done"}
        for i, id in enumerate(order):
            if id in done:
                with suppress(RunError):
                    self.store.keep(id, checkpoint.kept(i))
        self.store.note("loop", [])
        checkpoint.remove()

    def _enter(self, trial: Trial) -> int:
        self.trials.append(trial)
        self._jobs.append(Job(len(self._jobs), trial.label, trial.data))
        return len(self.trials) - 1

    def _deal(self, workers: RayWorkers) -> None:
        """Give waiting runs to workers with free slots."""
        for member in workers.ready:
            pack: dict[int, Job] = {}
            while (index := self._choose([*member.hand, *pack], member.slots)) is not None:
                pack[index] = self._jobs[index]
            if pack:
                workers.give(member, pack)

    def _choose(self, beside: Sequence[int], slots: int) -> int | None:
        """A waiting run that may be in a pack with these; None if there is none."""
        size = len(beside) + 1
        if size > min([slots, *(self._packs.get(index, slots) for index in beside)]):
            return None
        for index in [index for index in self._queue if size <= self._packs.get(index, size)]:
            self._queue.remove(index)
            if not self._is_given_up(index):
                return index
        while self._search is not None and (trial := self._search.next()) is not None:
            index = self._enter(trial)
            if not self._is_given_up(index):
                return index
        self._is_exhausted = True
        return None

    def _is_given_up(self, index: int) -> bool:
        """Whether the search has pruned a trial that has not begun; then it ends here."""
        if self._search is None or not self._search.is_hopeless(self.trials[index]):
            return False
        self._end(index, "pruned")
        return True

    def _lose(self, lost: LostWorker) -> None:
        """The runs of a lost worker run again, on the others or on a new one."""
        hand = lost.member.hand
        for index in reversed(hand):
            trial = self.trials[index]
            if lost.in_place:
                self._deaths[index] += 1
                self._packs[index] = max(1, len(hand) // 2)
            if lost.in_place and len(hand) == 1 and self._deaths[index] > 1:
                times = "twice" if self._deaths[index] == 2 else f"{self._deaths[index]} times"
                why = f"its worker died {times}, the last time with no other run on it: {lost.why}"
                self._end(index, "failed", why)
                self._tell({"event": "failed", "run": trial.label, "index": index, "problem": why})
                continue
            self._jobs[index] = Job(index, trial.label, trial.data)
            self._queue.insert(0, index)
            self._tell({"event": "lost", "run": trial.label, "index": index, "problem": lost.why})

    def _hear(self, member: WorkerHandle, event: Event) -> None:
        kind = event["event"]
        if kind == "judge":
            assert self._search is not None
            active = [(self.trials[index], self._jobs[index]) for index in event["active"]]
            member.actor.judge.remote([job.index for job in self._search.prune(active)])
            return
        if kind == "begin":
            self.store.set({self.trials[event["index"]].id: {"state": "running"}})
        elif kind == "eval":
            self._jobs[event["index"]].history.append({"metrics": event["metrics"]})
        elif kind in ENDED:
            member.hand.remove(event["index"])
            self._record(event["index"], event.pop("fields"), event.pop("adapter"))
        self._tell(event)

    def _record(self, index: int, fields: dict[str, Any], content: bytes | None) -> None:
        """Store a run that has ended: first its adapter, then its row."""
        trial, job = self.trials[index], self._jobs[index]
        if content is not None:
            self.store.keep(trial.id, Adapter.of(content, trial.label))
        self.store.set({trial.id: fields})
        job.state = fields["state"]
        job.result = {"metrics": fields["metrics"]} if fields["state"] == "done" else None
        if self._search is not None:
            self._search.ended(trial, job)

    def _end(self, index: int, state: Any, problem: str = "") -> None:
        """End a run without a worker."""
        job = self._jobs[index]
        job.state, job.problem = state, problem
        self._record(index, fields_of(self.host, job, None), None)

    def _tell(self, event: Event) -> None:
        for callback in self.callbacks:
            try:
                callback(event)
            except KeyboardInterrupt:
                self._interrupted = True
