"""The loop: any number of runs side by side, each as if it were alone.

Every step takes the next rows of every active run, runs them as one packed batch, and adds up the runs' losses. Their
parameters are disjoint, so one backward pass gives each the gradient it would have alone; optimiser, clipping, schedule
and dropout are each run's own. A run that ends makes room for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inlay.base.load import load_tokenizer
from inlay.engine.evaluate import by_example, outputs_of, score
from inlay.engine.host import Host
from inlay.errors import AdapterError, InlayError, RunError
from inlay.library.adapter import Adapter
from inlay.tasks import Row
from inlay.training import layout
from inlay.training.adamw import AdamW, Settings
from inlay.training.cache import Cache
from inlay.training.checkpoint import Checkpoint
from inlay.training.interrupt import Interrupt
from inlay.training.job import STATE, Job
from inlay.training.memory import slots_for

Event = dict[str, Any]
"""What callbacks are told: {"event": "step", "run": ...}; events are begin, step, eval, stage, done, failed, slots and
saved."""
Callback = Callable[[Event], None]


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
    ):
        """
        Args:
            slots: how many runs at once; by default as many as fit into memory.
            save_every: seconds between checkpoints.
            isolate: a run that fails is recorded, and the others go on.
        """
        if slots is not None and slots < 1:
            raise RunError(f"slots={slots} is not valid: expected at least 1")
        self.host = host
        self.jobs = list(jobs)
        self.slots = slots or slots_for(host, [job for job in self.jobs if job.state == "waiting"])
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.save_every = save_every
        self.isolate = isolate
        self.optimiser = AdamW(host.forward)
        self.active: list[Job] = []
        self.adapters: dict[int, Adapter] = {}
        """Finished adapters by the job's index."""
        self._put_aside: dict[int, tuple[Adapter, dict[str, Tensor], dict[str, Tensor]]] = {}
        self._saved = time.monotonic()
        self._interrupt = Interrupt()
        self._cache = Cache(host)

    def run(self) -> None:
        """Until every run is done or has failed. An interrupt waits for the step, and saves."""
        try:
            with self._interrupt:
                while self._fill():
                    if self._step():
                        self._evaluate([job for job in self.active if job.is_due])
                        for job in [job for job in self.active if job.is_over]:
                            self._guard(job, self._advance)
                    if self._interrupt.pending or time.monotonic() - self._saved >= self.save_every:
                        self.save()
                    if self._interrupt.pending:
                        raise KeyboardInterrupt
        finally:
            self._clear()

    def save(self) -> None:
        """Write a checkpoint, between two steps."""
        if self.checkpoint is None:
            return
        state: dict[str, Any] = {"base": self.host.base.identity(True), "slots": self.slots, "jobs": []}
        state["active"] = [job.index for job in self.active]
        state["layout"] = layout.read(self.host.forward.bank, self._slots())
        tensors: dict[str, Tensor] = {"": torch.zeros(1)}
        for job in self.jobs:
            fields = {name: getattr(job, name) for name in STATE}
            state["jobs"].append({**fields, "data": job.data.data_hash, "config": job.data.run.config()})
            snapshot = self._snapshot(job) if job in self.active else self._put_aside.get(job.index)
            if snapshot is not None:
                adapter, first, second = snapshot
                tensors |= {f"{job.index}/now/{n}": t for n, t in adapter.tensors.items()}
                tensors |= {f"{job.index}/first/{n}": t for n, t in first.items()}
                tensors |= {f"{job.index}/second/{n}": t for n, t in second.items()}
                tensors |= {f"{job.index}/best/{n}": t for n, t in job.best_tensors.items()}
        self.checkpoint.save(state, tensors)
        self._saved = time.monotonic()
        self._tell("saved", None)

    def resume(self) -> None:
        """Take up what a checkpoint holds; the runs, their data and the base must be the same."""
        assert self.checkpoint is not None
        state, tensors = self.checkpoint.read()
        try:
            self._restore(self.checkpoint, state, tensors)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, AdapterError) as error:
            self._clear()
            raise RunError(f"the checkpoint {self.checkpoint.file} is damaged: {error!r}") from None

    def _restore(self, checkpoint: Checkpoint, state: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if state["base"] != self.host.base.identity(True):
            raise RunError(f"the checkpoint {checkpoint.folder} is of another base than {self.host.base.name}")
        if len(state["jobs"]) != len(self.jobs):
            raise RunError(f"the checkpoint has {len(state['jobs'])} runs, not {len(self.jobs)}")
        self.slots = state["slots"]
        for job, kept in zip(self.jobs, state["jobs"], strict=True):
            if kept.pop("config") != job.data.run.config():
                raise RunError(
                    f"the settings of {job.name} are not those of the checkpoint; use the same, or start over"
                )
            if kept.pop("data") != job.data.data_hash:
                raise RunError(f"the data of {job.name} has changed since the checkpoint was written")
            for name, value in kept.items():
                setattr(job, name, value)
            job.best_tensors = _under(tensors, f"{job.index}/best/")
            if job.state == "done":
                self.adapters[job.index] = checkpoint.kept(job.index)
            elif now := _under(tensors, f"{job.index}/now/"):
                moments = (_under(tensors, f"{job.index}/first/"), _under(tensors, f"{job.index}/second/"))
                self._put_aside[job.index] = (self._adapter(job, now), *moments)
        kept_aside = dict(self._put_aside)
        for index in state["active"]:
            self._begin(self.jobs[index])
        layout.restore(self.host.forward.bank, self._slots(), state["layout"])
        self.optimiser = AdamW(self.host.forward)
        for job, slot in zip(self.active, self._slots(), strict=True):
            self.optimiser.write(slot, *kept_aside[job.index][1:])

    def _fill(self) -> bool:
        """Give free slots to waiting runs; False when there is nothing left to do."""
        for job in self.jobs:
            if len(self.active) >= self.slots:
                break
            if job.state == "waiting":
                self._guard(job, self._begin)
        return bool(self.active)

    def _begin(self, job: Job) -> None:
        """Load a run into a slot: fresh, or as it was put aside."""
        name = slot_name(job)
        if job.index in self._put_aside:
            adapter, first, second = self._put_aside.pop(job.index)
            self.host.load(adapter, name)
            self.optimiser.write(self.host.slot(name), first, second)
        else:
            self._add(job)
        job.state = "active"
        self.active.append(job)
        self._tell("begin", job, steps=job.total)

    def _add(self, job: Job) -> None:
        run, stage = job.data.run, job.stage
        how = {"labels": stage.labels, "task": stage.task, "head": run.head, "pool": run.pool, "seed": run.seed}
        self.host.add(slot_name(job), job.data.method, **how)  # type: ignore[arg-type]
        self.optimiser.forget(self.host.slot(slot_name(job)))

    def _step(self) -> bool:
        """One step of every active run; False if there was no room for it."""
        began = time.perf_counter()
        tokenizer = load_tokenizer(self.host.base)
        rows = {job.index: job.batch(tokenizer) for job in self.active}
        try:
            losses = self._backward(rows)
        except torch.OutOfMemoryError:
            self._make_room()
            return False
        settings = {self.host.slot(slot_name(job)): _settings(job) for job in self.active}
        self.optimiser.step(settings)
        self.optimiser.zero_grad()
        seconds = (time.perf_counter() - began) / len(self.active)
        for job, loss in zip(list(self.active), losses.tolist(), strict=True):
            lr = job.lr
            self._guard(job, lambda job, loss=loss: job.took_step(loss))  # type: ignore[misc]
            job.seconds += seconds
            if job.state != "failed":
                self._tell("step", job, step=job.at, loss=loss, lr=lr)
        return True

    def _backward(self, rows: Mapping[int, Sequence[Row]]) -> Tensor:
        """Forward and backward of one mixed batch: [active] losses, without the gates' penalties."""
        names = [slot_name(job) for job in self.active for _ in rows[job.index]]
        active = list(zip(self.active, self._slots(), strict=True))
        batch = self._cache.batch(active, [row for job in self.active for row in rows[job.index]])
        steps = {slot_name(job): (job.data.run.seed, job.at) for job in self.active}
        quiet = [slot_name(job) for job in self.active if not job.data.run.dropout]
        logits = iter(self.host.logits(batch, names, self.host.keys(steps, quiet)))
        losses, total = [], torch.zeros((), device=self.host.base.device)
        for job in self.active:
            outputs = [next(logits) for _ in rows[job.index]]
            base = self.host.base
            loss = job.stage.task.loss(outputs, rows[job.index], base, job.weights(base.device))
            losses.append(loss.detach())
            penalty = self.host.penalty(slot_name(job))
            total = total + (loss if penalty is None else loss + penalty)
        total.backward()  # type: ignore[no-untyped-call]
        return torch.stack(losses)

    def _make_room(self) -> None:
        """Memory ran out before anything was changed: half as many runs at once."""
        self.optimiser.zero_grad()
        torch.cuda.empty_cache()
        if len(self.active) == 1:
            self._guard(self.active[0], _does_not_fit)
            return
        self.slots = len(self.active) // 2
        for job in self.active[self.slots :]:
            self._put_aside[job.index] = self._snapshot(job)
            self._leave(job)
            job.state = "waiting"
        torch.cuda.empty_cache()
        self._tell("slots", None, slots=self.slots)

    def _evaluate(self, due: Sequence[Job]) -> None:
        outputs = outputs_of(self.host, [(slot_name(job), job.stage.validation) for job in due]) if due else []
        for job, out in zip(due, outputs, strict=True):
            stage = job.stage
            scores, _ = score(self.host, slot_name(job), stage.examples, stage.validation, out)
            if job.judge(scores):
                job.best_tensors = self.host.adapter(slot_name(job)).tensors
            self._tell("eval", job, **job.history[-1])

    def _advance(self, job: Job) -> None:
        """A stage is over: go on with the next one, or finish."""
        name = slot_name(job)
        if job.best_tensors:
            self.host.write(name, _dense(job.best_tensors, self.host.read(name)))
        ended = job.stage
        if job.next_stage():
            self._tell("stage", job, stage=job.stage.kind)
            if job.stage.kind == "again":
                finished = self.host.adapter(name, finish=True)
                self.host.unload(name)
                self.host.load(finished, name)
                self.optimiser.forget(self.host.slot(name))
            else:
                own = job.data.method.params(self.host.base.sites)
                tensors = {n: t for n, t in self.host.read(name).items() if n in own}
                self.host.unload(name)
                self._add(job)
                self.host.write(name, tensors)
            self.optimiser.drop_unused()
            return
        self._finish(job, ended.kind != "again")

    def _finish(self, job: Job, prune: bool) -> None:
        """Gates are dropped, scores calibrated; what is measured is what will be served."""
        name, data = slot_name(job), job.data
        adapter = self.host.adapter(name, finish=prune)
        self._leave(job)
        self.host.load(adapter, name)
        try:
            parts = {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})
            outputs = outputs_of(self.host, [(name, part.rows) for part in parts.values()])
            found: dict[str, dict[str, float]] = {}
            for (split, part), out in zip(parts.items(), outputs, strict=True):
                found[split], _ = score(self.host, name, part.examples, part.rows, out)
            sizes = by_example(outputs[0], data.validation.rows, len(data.validation.examples))
            task = job.stage.task.calibrate(*sizes)
        finally:
            self.host.unload(name)
        job.result = {"metrics": found}
        about: dict[str, Any] = {"metrics": found, "metric": data.metric, "best": _place(job), "data": data.data_hash}
        about |= {"config": data.run.config(), "history": job.history}
        self.adapters[job.index] = replace(adapter, name=job.name, task=task.spec, about=about)
        if self.checkpoint is not None:
            self.checkpoint.keep(job.index, self.adapters[job.index])
        job.state, job.best_tensors = "done", {}
        self._tell("done", job, metrics=found)

    def _guard(self, job: Job, do: Callable[[Job], None]) -> None:
        """Do something for one run; if it fails, the others go on."""
        try:
            do(job)
        except InlayError as error:
            job.state, job.problem = "failed", str(error)
            if job in self.active:
                self._leave(job)
            self._tell("failed", job, problem=job.problem)
            if not self.isolate:
                raise

    def _clear(self) -> None:
        for job in self.active:
            if slot_name(job) in self.host:
                self.host.unload(slot_name(job))
        self.active = []

    def _leave(self, job: Job) -> None:
        self.optimiser.forget(self.host.slot(slot_name(job)))
        self.active.remove(job)
        self.host.unload(slot_name(job))
        self.optimiser.drop_unused()

    def _slots(self) -> list[int]:
        return [self.host.slot(slot_name(job)) for job in self.active]

    def _snapshot(self, job: Job) -> tuple[Adapter, dict[str, Tensor], dict[str, Tensor]]:
        first, second = self.optimiser.read(self.host.slot(slot_name(job)))
        cpu = ({n: t.cpu() for n, t in moments.items()} for moments in (first, second))
        return (self.host.adapter(slot_name(job)), *cpu)  # type: ignore[return-value]

    def _adapter(self, job: Job, tensors: dict[str, Tensor]) -> Adapter:
        """A stage's adapter around tensors from a checkpoint."""
        self._add(job)
        like = self.host.adapter(slot_name(job))
        self.host.unload(slot_name(job))
        return replace(like, tensors=tensors)

    def _tell(self, event: str, job: Job | None, **more: Any) -> None:
        told = {"event": event, **({} if job is None else {"run": job.name, "index": job.index}), **more}
        for callback in self.callbacks:
            try:
                callback(told)
            except KeyboardInterrupt:
                self._interrupt.pending = True


def _does_not_fit(job: Job) -> None:
    raise RunError(f"one step of {job.name} does not fit into memory; try a smaller batch_size or max_length")


def slot_name(job: Job) -> str:
    """What a run's adapter is called while it trains; no user's name looks like this."""
    return f" run {job.index}"


def _settings(job: Job) -> Settings:
    run = job.data.run
    return Settings(job.step + 1, job.lr, run.weight_decay, run.clip, run.decay == "weights")


def _place(job: Job) -> dict[str, Any]:
    best = job.best or {"step": job.at, "epoch": round(job.epoch, 3)}
    return {"step": best["step"], "epoch": best["epoch"]}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _dense(stored: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors under the names they have in a slot; constants are not stored and stay."""
    from inlay.bank import sparse

    out = {}
    for name, value in now.items():
        found = stored.get(name)
        if found is None and name + sparse.INDEX in stored:
            found = sparse.decode(stored, name, tuple(value.shape))
        if found is not None:
            out[name] = found
    return out
