"""The loop: any number of runs side by side, each as if it were alone.

Every step takes the next rows of every active run, runs them as one packed batch, and adds up the runs' losses. Their
parameters are disjoint, so one backward pass gives each the gradient it would have alone; optimiser, clipping, schedule
and dropout are each run's own. A run that ends makes room for the next one.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch

from inlay.base.load import load_tokenizer
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.errors import AdapterError, DiskError, InlayError, RunError
from inlay.library.adapter import Adapter
from inlay.tasks import Row
from inlay.tracking.events import Callback
from inlay.training import compiling, state
from inlay.training.adamw import Settings
from inlay.training.cache import Cache
from inlay.training.checkpoint import Checkpoint
from inlay.training.gc_frozen import gc_frozen
from inlay.training.interrupt import Interrupt, Stopped
from inlay.training.job import Job
from inlay.training.memory import TOO_LARGE, refuse_too_large, slots_for
from inlay.training.milestones import Milestones
from inlay.training.parallel import ALONE, Ranks
from inlay.training.slots import Slots, slot_name
from inlay.training.step import PendingLosses, RunStep

Source = Callable[[int], Job | None]
"""The next run, under this index; None if there is none now."""
_T = TypeVar("_T")
_SAVING = 0.05
"""The largest share of the time that saving at every end may take."""


class Loop:
    """Runs, slots, an optimiser and the way from one step to the next."""

    def __init__(
        self,
        host: Host,
        jobs: Sequence[Job],
        *,
        slots: int | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: Checkpoint | None = None,
        save_every: float = 60.0,
        isolate: bool = True,
        save_ends: bool = False,
        source: Source | None = None,
        prune: Callable[[Sequence[Job]], Sequence[Job]] | None = None,
        ranks: Ranks = ALONE,
    ):
        """
        Args:
            slots: how many runs at once; by default as many as fit into memory.
            save_every: seconds between checkpoints.
            isolate: a run that fails is recorded, and the others go on.
            save_ends: also save when a run has ended, unless saving would take a large share of the time.
            source: called for another run whenever a slot is free and none of `jobs` waits.
            prune: called after evaluations, gives those of the active runs to end; their slots are free at once.
            ranks: the processes that train together; the leader alone writes.
        """
        if slots is not None and slots < 1:
            raise RunError(f"slots={slots} is not valid: expected at least 1")
        self.host = host
        self.jobs = list(jobs)
        self.most = ranks.least(slots or slots_for(host, [job for job in self.jobs if job.state == "waiting"]))
        """How many runs are active at once."""
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.save_every = save_every
        self.isolate = isolate
        self.save_ends = save_ends
        self.source = source
        self.prune = prune
        self.ranks = ranks
        self.slots = Slots(host, ranks)
        self.milestones = Milestones(self)
        self.adapters: dict[int, Adapter] = {}
        """Finished adapters by the job's index."""
        self._saved, self._took, self._ended = time.monotonic(), 0.0, 0
        self.interrupt = Interrupt()
        self._resumed = False
        self._cache = Cache(host)
        self._pending: PendingLosses | None = None

    def run(self) -> None:
        """Until every run is done or has failed. An interrupt waits for the step, and saves."""
        for _ in self.steps():
            pass

    def steps(self) -> Generator[int, None, None]:
        """The same, but yield after every step of all runs, with how many are active. Closing it ends them."""
        try:
            with self.interrupt, gc_frozen(), compiling.compiled(self.host, self.jobs, self.most):
                while self._fill():
                    with contextlib.suppress(Stopped):
                        if not self._catch_up():
                            self._step_all()
                    stop, save = self.ranks.any(self.interrupt.pending, self._is_time_to_save())
                    if stop or save:
                        self.save()
                    if stop:
                        raise self.interrupt.error
                    yield len(self.active)
                if self.save_ends:
                    self.save()
        finally:
            self.slots.clear()
            with self.host.lock:
                self.host.graphs.clear()  # recordings of steps hold much memory, and are not needed again

    def save(self) -> None:
        """Write a checkpoint, between two steps."""
        if self.checkpoint is None:
            return
        began = time.monotonic()
        self.settle()
        for job in list(self.active):  # one that has diverged could not be loaded again, nor its neighbours with it
            self.guard(job, self.slots.refuse_diverged)
        if self.ranks.leads:
            state.write(self.checkpoint, self.jobs, self.slots, self.most)
        self._saved = time.monotonic()
        self._took, self._ended = self._saved - began, sum(job.has_ended for job in self.jobs)
        self.tell("saved", None)

    def resume(self, more: bool = False) -> None:
        """Take up what the checkpoint holds; the runs, their data and the base must be the same.

        Args:
            more: there may be further runs after those of the checkpoint.
        """
        assert self.checkpoint is not None
        try:
            self.most, self.adapters = state.read(self.checkpoint, self.jobs, self.slots, more)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, AdapterError) as error:
            self.slots.clear()
            raise RunError(f"the checkpoint {self.checkpoint.file} is damaged: {error!r}") from None
        self._resumed = True
        for job in self.active:
            self._tell_begin(job)

    @property
    def active(self) -> list[Job]:
        """The runs that have a slot."""
        return self.slots.active

    def _fill(self) -> bool:
        """Give free slots to waiting runs, those with most to do first, so that they are not alone at the end; False
        when there is nothing left to do."""
        if len(self.active) < self.most:
            waiting = [job for job in self.jobs if job.state == "waiting"]
            for job in sorted(waiting, key=lambda job: job.at - job.total):
                if len(self.active) < self.most:
                    self.guard(job, self._begin)
        while self.source is not None and len(self.active) < self.most:
            new = self.source(len(self.jobs))
            if new is None:
                break
            self.jobs.append(new)
            if new.state == "waiting":
                self.guard(new, self._begin)
        return bool(self.active)

    def _is_time_to_save(self) -> bool:
        since = time.monotonic() - self._saved
        ended = self.save_ends and sum(job.has_ended for job in self.jobs) > self._ended
        return since >= self.save_every or (ended and self._took <= _SAVING * since)

    def _begin(self, job: Job) -> None:
        with contextlib.suppress(torch.OutOfMemoryError):
            self.slots.begin(job)
            self._tell_begin(job)
            return
        self.free()
        if not self.active:
            refuse_too_large(job)
        self.most = len(self.active)  # it waits until one of them has ended
        self.tell("slots", None, slots=self.most)

    def _tell_begin(self, job: Job) -> None:
        self.tell("begin", job, steps=job.total, step=job.at, config=job.data.run.config())

    def _step_all(self) -> None:
        """One step of every active run, and what is due after it."""
        self._cache.keep(self.active)
        stepped: list[Job] = []
        fits = True
        for group in self.slots.groups():
            jobs = [job for job in group if job.state == "active"]  # the loss of its last step may have ended one
            fits = not jobs or self._step(jobs)
            if not fits:
                break
            stepped += jobs
        active = len(self.active)
        if any(job.is_due or job.is_over for job in stepped):
            self.milestones.look_at(stepped)
        if not fits and len(self.active) == active:  # else there is more room now
            self._make_room()

    def _catch_up(self) -> bool:
        """Make the evaluations that were given up before the checkpoint was written; False if there are none."""
        late = [job for job in self.active if job.is_over or (job.step and job.is_due and not job.is_judged)]
        if self._resumed and late:
            self.milestones.look_at(late)
        return self._resumed and bool(late)

    def _step(self, active: Sequence[Job]) -> bool:
        """One step of some runs, in one batch; False if there was no room for it."""
        began, graphs = time.perf_counter(), compiling.graphs()
        tokenizer = load_tokenizer(self.host.base)
        parts = [self._part(job, job.batch(tokenizer)) for job in active]
        rows_here = [(job, self.host.slot(p.name), p.mine) for job, p in zip(active, parts, strict=True)]
        batch, losses = self._batch(rows_here), None
        with contextlib.suppress(torch.OutOfMemoryError):
            losses = self.slots.step(parts, batch)
        if losses is None:  # the error is gone by now, and with it the failed batch that it kept alive
            return False
        if compiling.graphs() > graphs:
            self.tell("compiled", None, seconds=time.perf_counter() - began)
        steps = [(job, job.at + 1, part.settings.lr) for job, part in zip(active, parts, strict=True)]
        previous, self._pending = self._pending, PendingLosses(steps, losses)
        seconds = (time.perf_counter() - began) / len(active)
        for job, part in zip(active, parts, strict=True):
            job.step += 1
            job.tokens += sum(map(len, map(attrgetter("ids"), part.rows)))
            job.seconds += seconds
        if losses.is_cuda:  # the device is at work on this step; by now it has done the one before
            self._note(previous)
        else:
            self.settle()
        return True

    def _batch(self, parts: Sequence[tuple[Job, int, Sequence[Row]]]) -> Batch:
        if self._cache.begins_at(parts):
            with contextlib.suppress(torch.OutOfMemoryError), self.ranks.agreeing():
                return self._cache.batch(parts)
            self._cache.give_up()
            self.free()
        return self._cache.batch(parts)

    def _part(self, job: Job, rows: Sequence[Row]) -> RunStep:
        run, share = job.data.run, self.ranks.share(rows, whole=job.stage.kind == "contrast")
        settings = Settings(job.step + 1, job.lr, run.weight_decay, run.clip, run.decay == "weights", job.gate_lr)
        key = run.seed, job.at
        drops = run.dropout, job.weights, run.attention_dropout, run.head_dropout
        return RunStep(slot_name(job), job.stage.task, rows, settings, key, *drops, share)

    def settle(self) -> None:
        """Wait for the losses of the newest step."""
        pending, self._pending = self._pending, None
        self._note(pending)

    def _note(self, pending: PendingLosses | None) -> None:
        for (job, step, lr), loss in zip(pending.steps, pending.losses(), strict=True) if pending else ():
            if job in self.active:
                self.guard(job, functools.partial(_note_loss, loss, step))
                if job.state != "failed":
                    self.tell("step", job, step=step, loss=loss, lr=lr)

    def _make_room(self) -> None:
        """Memory ran out before anything was changed in these runs: half as many at once."""
        self.settle()
        self.slots.optimiser.zero_grad()
        self.free()
        if len(self.active) == 1:
            self.guard(self.active[0], refuse_too_large)
            return
        self.most = len(self.active) // 2
        for job in self.active[self.most :]:
            self.slots.put_aside(job)
        torch.cuda.empty_cache()
        self.tell("slots", None, slots=self.most)

    def with_room(self, job: Job, do: Callable[[], _T], stay: Sequence[Job] = ()) -> _T:
        """Do something for one run that changes nothing if memory runs out; if it does, again without the others.

        Args:
            stay: runs that cannot be put aside now.
        """
        for alone in (False, True):
            with contextlib.suppress(torch.OutOfMemoryError), self.ranks.agreeing():
                return do()
            self.free()
            for other in [] if alone else list(self.active):
                if other is not job and other not in stay and not other.is_over:
                    self.slots.put_aside(other)
        raise RunError(TOO_LARGE.format(job.name))

    def free(self) -> None:
        """Release memory that is not needed: recordings, and what torch keeps for later."""
        with self.host.lock:
            self.host.graphs.clear()
        torch.cuda.empty_cache()

    def guard(self, job: Job, do: Callable[[Job], None]) -> None:
        """Do something for one run; if it fails, the others go on."""
        try:
            do(job)
        except DiskError:  # nothing is wrong with the run, and the next one would meet it too
            raise
        except InlayError as error:
            job.state, job.problem = "failed", str(error)
            if job in self.active:
                self.slots.leave(job)
            self.tell("failed", job, problem=job.problem)
            if not self.isolate or self.ranks.lost:
                raise

    def tell(self, event: str, job: Job | None, **more: Any) -> None:
        """Call all callbacks with an event."""
        facts = {"event": event, **({} if job is None else {"run": job.name, "index": job.index}), **more}
        for callback in self.callbacks:
            try:
                callback(facts)
            except KeyboardInterrupt:
                self.interrupt.pending = True


def _note_loss(loss: float, step: int, job: Job) -> None:
    job.note(loss, step)
