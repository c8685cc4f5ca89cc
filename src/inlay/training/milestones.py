"""What is due after a step: evaluations, the ends of stages, and the ends of runs.

At its end an adapter is calibrated, measured as it will be served, and gets all that a card should say.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.data.columns import by_option
from inlay.engine.evaluate import by_example, replicates, score
from inlay.engine.host import Host
from inlay.heads import logistic
from inlay.library.adapter import Adapter
from inlay.runs.prepare import Split
from inlay.tasks import Row, RowOutputs
from inlay.training.interrupt import Stopped
from inlay.training.job import Job
from inlay.training.memory import refuse_too_large
from inlay.training.parallel import Ranks
from inlay.training.slots import slot_name

if TYPE_CHECKING:
    from inlay.training.loop import Loop

Outputs = list[Sequence[Tensor]]
"""For every split of a run, the outputs of all its rows."""


class Milestones:
    """The milestones of the runs in a loop."""

    def __init__(self, loop: Loop):
        self.loop = loop

    def look_at(self, stepped: Sequence[Job]) -> None:
        """What is due after a step: evaluations, and the ends of stages."""
        self.loop.settle()
        self._evaluate([job for job in stepped if job.state == "active" and job.is_due and not job.is_judged])
        self._drop_hopeless()
        ended: list[Job] = []
        over = [job for job in stepped if job.state == "active" and job.is_over]
        states = self._states([job for job in over if job.stage.kind == "contrast"])
        for job in over:
            self.loop.guard(job, functools.partial(self._advance, ended, states))
        self._finish(sorted(ended, key=attrgetter("index")))
        # a stage without steps, whose head is fitted and not trained, is over at once
        if again := [job for job in over if job.state == "active" and job not in ended and job.is_over]:
            self.look_at(again)

    def _drop_hopeless(self) -> None:
        for job in self.loop.prune(list(self.loop.active)) if self.loop.prune is not None else ():
            if not job.is_over:  # else only measuring it is left
                self.loop.slots.leave(job)
                job.state, job.best_tensors = "pruned", {}
                self.loop.tell("pruned", job)

    def _evaluate(self, due: Sequence[Job]) -> None:
        began = time.perf_counter()
        outputs = self._outputs([(slot_name(job), job.stage.validation) for job in due])
        if outputs is None:
            for job in due:
                self.loop.guard(job, functools.partial(self._judge_alone, due))
        for job, out in zip(due, outputs or (), strict=False):
            self.loop.guard(job, functools.partial(self._judge, out))
        for job in due:
            job.seconds += (time.perf_counter() - began) / len(due)

    def _outputs(self, parts: Sequence[tuple[str, Sequence[Row]]]) -> list[Sequence[Tensor]] | None:
        """The outputs of adapters for rows, all in the same batches; None if memory ran out."""
        with contextlib.suppress(torch.OutOfMemoryError):
            return self.loop.ranks.outputs(self.loop.host, parts, self.loop.interrupt.give_up) if parts else []
        self.loop.free()
        return None

    def _outputs_alone(self, job: Job, rows: Sequence[Row], stay: Sequence[Job] = ()) -> Sequence[Tensor]:
        """The outputs of one run for rows; others make room for it, except those that cannot be put aside now."""
        parts = [(slot_name(job), rows)]
        return self.loop.with_room(
            job, lambda: self.loop.ranks.outputs(self.loop.host, parts, self.loop.interrupt.give_up), stay
        )[0]

    def _judge_alone(self, due: Sequence[Job], job: Job) -> None:
        self._judge(self._outputs_alone(job, job.stage.validation, due), job)

    def _judge(self, outputs: Sequence[Tensor], job: Job) -> None:
        stage = job.stage
        scores = score(self.loop.host, slot_name(job), stage.examples, stage.validation, outputs)
        loss = None
        if stage.task.gives_answers:  # else its score is made of the loss
            loss = stage.task.loss(outputs, stage.validation, self.loop.host.base).item()
        is_best = job.judge(*self.loop.ranks.same((scores, loss)))
        if stage.fold is not None and job.step >= stage.steps:
            row_outputs = self.loop.ranks.same([out.tolist() for out in outputs])
            job.held_out = [*job.held_out[: stage.fold], row_outputs]  # once more, after a stage that tunes again
        if is_best:
            job.best_tensors = self.loop.host.adapter(slot_name(job)).tensors
        self.loop.tell("eval", job, **job.history[-1])

    def _states(self, over: Sequence[Job]) -> dict[int, Sequence[Tensor]]:
        """The states of all rows of runs whose contrast is over; none if memory ran out."""
        outputs = self._outputs([(slot_name(job), job.stage.rows) for job in over])
        return {job.index: states for job, states in zip(over, outputs or (), strict=False)}

    def _advance(self, ended: list[Job], states: Mapping[int, Sequence[Tensor]], job: Job) -> None:
        """A stage is over: go on with the next one, or end."""
        self.loop.with_room(job, lambda: self.loop.slots.back_to_best(job))
        head = self._fitted_head(job, states.get(job.index)) if job.stage.kind == "contrast" else {}
        if job.next_stage():
            self.loop.tell("stage", job, stage=job.stage.kind)
            self._enter_stage(job)
            if head:  # else the run may be waiting for room
                self.loop.host.write(slot_name(job), head)
        else:
            ended.append(job)

    def _fitted_head(self, job: Job, states: Sequence[Tensor] | None) -> dict[str, Tensor]:
        """The head of the next stage, by regression on the states of the rows."""
        if states is None:
            states = self._outputs_alone(job, job.stage.rows)
        classes = [row.target for row in job.stage.rows]
        head = logistic.fit(torch.stack(list(states)), classes, len(job.stage.labels), job.data.weights)
        return {f"head.{name}": tensor for name, tensor in self.loop.ranks.same(head).items()}

    def _enter_stage(self, job: Job) -> None:
        finished = None
        if job.stage.kind == "again":
            finished = self.loop.with_room(job, lambda: self.loop.host.adapter(slot_name(job), finish=True))
            job.gates = finished.about.get("gates", {})
        with contextlib.suppress(torch.OutOfMemoryError):
            self.loop.slots.enter_stage(job, finished)
            return
        if job.state != "waiting":
            refuse_too_large(job)

    def _finish(self, ended: Sequence[Job]) -> None:
        """Scores are calibrated; what is measured is what will be served, so gates are dropped before."""
        gated = [job for job in ended if self.loop.slots.has_gates(job)]
        plain = [job for job in ended if job not in gated]
        began = time.perf_counter()
        outputs = self._last_outputs(plain) if plain else []
        if outputs is None:
            self.loop.free()
        share = (time.perf_counter() - began) / max(1, len(plain))
        for i, job in enumerate(plain):
            job.seconds += share
            self.loop.guard(job, functools.partial(self._end, outputs[i] if outputs else None))
        for job in gated:
            self.loop.guard(job, self._end_without_gates)

    def _last_outputs(self, ended: Sequence[Job]) -> list[Outputs] | None:
        with contextlib.suppress(torch.OutOfMemoryError):
            return last_outputs_of(self.loop.host, ended, self.loop.ranks, self.loop.interrupt.give_up)
        return None

    def _end(self, outputs: Outputs | None, job: Job) -> None:
        """A run whose slot holds what will be served."""
        began = time.perf_counter()
        finished = self.loop.with_room(
            job, lambda: self._measured(job, self.loop.host.adapter(slot_name(job)), outputs)
        )
        self.loop.slots.leave(job)
        self._keep(job, finished, began)

    def _end_without_gates(self, job: Job) -> None:
        began, name = time.perf_counter(), slot_name(job)
        adapter = self.loop.with_room(job, lambda: self.loop.host.adapter(name, finish=job.stage.kind != "again"))
        snapshot = self.loop.slots.snapshot(job) if self.loop.checkpoint is not None else None
        self.loop.slots.leave(job)

        def measured() -> Adapter:
            self.loop.host.load(adapter, name)
            try:
                return self._measured(job, adapter)
            finally:
                self.loop.host.unload(name)

        try:
            finished = self.loop.with_room(job, measured)
        except Stopped:  # it ends when the training goes on
            if snapshot is not None:
                self.loop.slots.aside[job.index], job.state = snapshot, "waiting"
            raise
        self._keep(job, finished, began)

    def _measured(self, job: Job, adapter: Adapter, outputs: Outputs | None = None) -> Adapter:
        if outputs is None:
            (outputs,) = last_outputs_of(self.loop.host, [job], self.loop.ranks, self.loop.interrupt.give_up)
        return measured(self.loop.host, job, adapter, outputs)

    def _keep(self, job: Job, finished: Adapter, began: float) -> None:
        job.result = {"metrics": finished.about["metrics"]}
        self.loop.adapters[job.index] = finished
        if self.loop.checkpoint is not None and self.loop.ranks.leads:
            self.loop.checkpoint.keep(job.index, finished)
        job.state, job.best_tensors = "done", {}
        job.seconds += time.perf_counter() - began
        self.loop.tell("done", job, **job.result)


def last_outputs_of(
    host: Host, jobs: Sequence[Job], ranks: Ranks, before_batch: Callable[[], None] | None = None
) -> list[Outputs]:
    """The outputs of runs for their validation and test rows, in the same batches, as in evaluations."""
    parts = [(slot_name(job), part.rows) for job in jobs for part in _splits(job).values()]
    outputs = iter(ranks.outputs(host, parts, before_batch) if parts else ())
    return [[next(outputs) for _ in _splits(job)] for job in jobs]


def measured(host: Host, job: Job, adapter: Adapter, outputs: Outputs) -> Adapter:
    """A run's finished adapter, which the host has in the run's slot, with its metrics and its history."""
    data, name, splits = job.data, slot_name(job), _splits(job)
    if data.folds:
        splits, outputs = {"validation": data.validation, **splits}, [_fold_outputs(job), *outputs]
    sizes = by_example(outputs[0], data.validation.rows, len(data.validation.examples))
    task = job.stage.task.calibrate(*sizes)  # before scoring: a temperature moves what is above a cut-off
    scores: dict[str, dict[str, float]] = {}
    for (split, part), out in zip(splits.items(), outputs, strict=True):
        scores[split] = score(host, name, part.examples, part.rows, out, task)
    if job.is_compared:
        held_out = data.validation
        job.replicates = replicates(host, name, held_out.examples, held_out.rows, outputs[0], task, data.metric)
        job.validation_loss = task.answer_loss(*sizes, host.base)
    about: dict[str, Any] = {
        "metrics": scores,
        "metric": data.metric,
        "best": job.kept,
        "data": data.data_hash,
        "files": data.files,
        "scored_on": {split: part.content for split, part in splits.items()},
        "config": data.run.written(),
        "columns": by_option(data.task.kind, data.columns),
        "history": job.history,
    }
    about |= {"gates": gates} if (gates := adapter.about.get("gates") or job.gates) else {}
    about |= {"weights": host.base.form} if host.base.form else {}
    about |= {"folds": len(data.folds)} if data.folds else {}
    about |= {"fold": data.run.fold} if data.run.fold else {}
    about |= {"teacher": data.teacher} if data.teacher else {}
    return replace(adapter, name=job.name, task=task.spec, about=about)


def _splits(job: Job) -> dict[str, Split]:
    """The splits that a finished adapter is run on; validation rows only if it has not learned from them."""
    data = job.data
    validation = {} if data.folds else {"validation": data.validation}
    return validation | ({"test": data.test} if data.test is not None else {})


def _fold_outputs(job: Job) -> Sequence[Tensor]:
    """The outputs for every row, by the fold that has not learned from it."""
    output_of_row: dict[int, Tensor] = {}
    for examples, row_outputs in zip(job.data.folds, job.held_out, strict=True):
        numbers = set(examples)
        rows = [number for number, row in enumerate(job.data.validation.rows) if row.example in numbers]
        output_of_row |= {number: torch.tensor(values) for number, values in zip(rows, row_outputs, strict=True)}
    outputs = [output_of_row[number] for number in range(len(job.data.validation.rows))]
    return outputs if job.data.task.per_token else RowOutputs(torch.stack(outputs))
