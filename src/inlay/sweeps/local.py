"""The local engine: all trials of a sweep through one loop, on one base.

A kill is harmless because of the order of writes: a run's adapter, then the checkpoint that says it is done, then its
row. After a kill the loop continues from the checkpoint, ended runs and neighbours included, so that on the CPU every
number is the same as without the kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.sweeps.search import OptunaSearch
from inlay.sweeps.store import ENDED, Store
from inlay.sweeps.trial import Trial
from inlay.tracking.events import Callback
from inlay.training.api import result_of
from inlay.training.checkpoint import Checkpoint
from inlay.training.job import Job
from inlay.training.loop import Loop
from inlay.training.memory import slots_for


class Local:
    """Runs trials and stores their results."""

    def __init__(
        self,
        host: Host,
        store: Store,
        *,
        slots: int | None = None,
        callbacks: Sequence[Callback] = (),
        save_every: float = 60.0,
    ):
        self.host, self.store, self.slots, self.callbacks, self.save_every = host, store, slots, callbacks, save_every
        self.trials: list[Trial] = []
        """By the index of their jobs."""
        self.checkpoint = None if store.folder is None else Checkpoint(store.folder / "loop")
        self._search: OptunaSearch | None = None
        self._loop: Loop
        self._recorded: set[int] = set()

    def run(
        self, trials: Sequence[Trial], search: OptunaSearch | None = None, keep: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Run trials until all have ended.

        Args:
            search: gives more trials.
            keep: called at the end; says which adapters are worth keeping.
        """
        self._search = search
        loop = self._resumed(trials) or self._make([] if search is not None else open_trials(self.store, trials))
        self._record()  # runs that are done in the checkpoint, but not yet in the file
        if search is not None:
            placed = {trial.id for trial in self.trials}
            waiting = [trial for trial in open_trials(self.store, trials) if trial.id not in placed]
            search.begin(list(zip(self.trials, loop.jobs, strict=True)), waiting)
        if search is not None or not all(job.has_ended for job in loop.jobs):
            self._note_order()
            loop.run()
        self._record()
        self._keep(set(keep()))
        if self.checkpoint is not None:
            self.store.note("loop", [])
            self.checkpoint.remove()
            self.store.tidy()

    def _resumed(self, trials: Sequence[Trial]) -> Loop | None:
        """The loop of the checkpoint, with trials added since; None if there is none that fits."""
        order: list[str] = self.store.about("loop", [])
        known = {trial.id: trial for trial in trials}
        if self.checkpoint is None or not self.checkpoint.exists:
            return None
        if order and known.keys() >= set(order):
            new = open_trials(self.store, trials) if self._search is None else []
            added = [trial for trial in new if trial.id not in order]
            loop = self._make([known[id] for id in order] + added)
            try:
                loop.resume(more=True)
                return loop
            except RunError:  # damaged, or of another version: what had not ended starts over
                loop.slots.clear()
        self.checkpoint.remove()
        return None

    def _make(self, trials: Sequence[Trial]) -> Loop:
        self.trials = list(trials)
        jobs = [_job(i, trial) for i, trial in enumerate(self.trials)]
        search, slots = self._search, self.slots
        if slots is None and search is not None:
            slots = slots_for(self.host, search.largest())
        self._loop = Loop(
            self.host,
            jobs,
            slots=slots,
            callbacks=[self._hear, *self.callbacks],
            checkpoint=self.checkpoint,
            save_every=self.save_every,
            save_ends=True,
            source=None if search is None else self._next,
            prune=None if search is None else lambda active: search.prune([(self.trials[j.index], j) for j in active]),
        )
        return self._loop

    def _next(self, index: int) -> Job | None:
        assert self._search is not None
        trial = self._search.next()
        if trial is None:
            return None
        self.trials.append(trial)
        self._note_order()
        job = _job(index, trial)
        if self._search.is_hopeless(trial):
            job.state = "pruned"
            self._search.ended(trial, job)
        return job

    def _note_order(self) -> None:
        self.store.note("loop", [trial.id for trial in self.trials])

    def _hear(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "begin":
            self.store.set({self.trials[event["index"]].id: {"state": "running"}})
        elif kind in ENDED:
            if self._search is not None:
                self._search.ended(self.trials[event["index"]], self._loop.jobs[event["index"]])
            if self.checkpoint is None:
                self._record()
        elif kind == "saved":
            self._record()

    def _record(self) -> None:
        """Store every run that has ended since the last call."""
        new = [job for job in self._loop.jobs if job.has_ended and job.index not in self._recorded]
        if new:
            self.store.set({self.trials[job.index].id: fields_of(self.host, job, self._adapter(job)) for job in new})
            self._recorded |= {job.index for job in new}

    def _adapter(self, job: Job) -> Adapter | None:
        """The adapter of a run that is done."""
        if job.state != "done":
            return None
        adapter = self._loop.adapters.get(job.index)
        if adapter is None:
            assert self.checkpoint is not None
            return self.checkpoint.kept(job.index)
        if self.checkpoint is not None:  # it is on disk
            del self._loop.adapters[job.index]
        return adapter

    def _keep(self, wanted: set[str]) -> None:
        for trial, job in zip(self.trials, self._loop.jobs, strict=True):
            if trial.id in wanted and (adapter := self._adapter(job)) is not None:
                self.store.keep(trial.id, adapter)
        self.store.forget(but=wanted)


def fields_of(host: Host, job: Job, adapter: Adapter | None) -> dict[str, Any]:
    """What a run's row says once it has ended."""
    result = result_of(host, job, adapter)
    values = [entry["metrics"][result.metric] for entry in job.history if result.metric in entry["metrics"]]
    return {
        "state": job.state,
        "value": result.value if job.state == "done" else (values[-1] if values else None),
        "metrics": result.metrics,
        "history": result.history,
        "replicates": job.replicates,
        "loss": job.validation_loss,
        "parameters": result.parameters,
        "seconds": result.seconds,
        "tokens": job.tokens,
        "error": job.problem,
    }


def open_trials(store: Store, trials: Sequence[Trial]) -> list[Trial]:
    """Those that have not ended."""
    ended = {row.id for row in store.rows([trial.id for trial in trials]) if row.state in ENDED}
    return [trial for trial in trials if trial.id not in ended]


def _job(index: int, trial: Trial) -> Job:
    return Job(index, trial.label, trial.data, is_compared=True)
