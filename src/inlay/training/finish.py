"""The end of a run: its adapter calibrated, measured as it will be served, and with all that a card should say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from inlay.data.columns import by_option
from inlay.engine.evaluate import by_example, score
from inlay.engine.host import Host
from inlay.library.adapter import Adapter
from inlay.training.job import Job
from inlay.training.parallel import Ranks
from inlay.training.prepare import Part
from inlay.training.slots import slot_name

Outputs = list[list[Tensor]]
"""Of a run's parts: those of every row."""


def outputs_of(
    host: Host, jobs: Sequence[Job], ranks: Ranks, before_batch: Callable[[], None] | None = None
) -> list[Outputs]:
    """What runs, each in its slot, say of their validation and test rows: in the same batches, as evaluations are."""
    parts = [(slot_name(job), part.rows) for job in jobs for part in _parts(job).values()]
    found = iter(ranks.outputs(host, parts, before_batch))
    return [[next(found) for _ in _parts(job)] for job in jobs]


def measured(host: Host, job: Job, adapter: Adapter, outputs: Outputs) -> Adapter:
    """A run's finished adapter, which the host has in the run's slot, with its metrics and its history."""
    data, name, parts = job.data, slot_name(job), _parts(job)
    sizes = by_example(outputs[0], data.validation.rows, len(data.validation.examples))
    task = job.stage.task.calibrate(*sizes)  # before scoring: a temperature moves what is above a cut-off
    found: dict[str, dict[str, float]] = {}
    for (split, part), out in zip(parts.items(), outputs, strict=True):
        found[split], _ = score(host, name, part.examples, part.rows, out, task)
    about: dict[str, Any] = {
        "metrics": found,
        "metric": data.metric,
        "best": _place(job),
        "data": data.data_hash,
        "files": data.files,
        "scored_on": {split: part.content for split, part in parts.items()},
        "config": data.run.written(),
        "columns": by_option(data.task.kind, data.columns),
        "history": job.history,
    }
    about |= {"gates": gates} if (gates := adapter.about.get("gates") or job.gates) else {}
    about |= {"weights": host.base.form} if host.base.form else {}
    return replace(adapter, name=job.name, task=task.spec, about=about)


def _parts(job: Job) -> dict[str, Part]:
    data = job.data
    return {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})


def _place(job: Job) -> dict[str, Any]:
    best = job.best or {"step": job.at, "epoch": round(job.epoch, 3)}
    return {"step": best["step"], "epoch": best["epoch"]}
