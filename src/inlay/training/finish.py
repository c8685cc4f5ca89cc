"""The end of a run: its adapter calibrated, measured as it will be served, and with all that a card should say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inlay.data.columns import by_option
from inlay.engine.evaluate import by_example, score
from inlay.engine.host import Host
from inlay.library.adapter import Adapter
from inlay.training.encoded import content
from inlay.training.job import Job
from inlay.training.parallel import Ranks


def measured(
    host: Host, name: str, job: Job, adapter: Adapter, ranks: Ranks, before_batch: Callable[[], None] | None = None
) -> Adapter:
    """A run's finished adapter, which the host has under a name, with its metrics and its history."""
    data = job.data
    parts = {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})
    outputs = ranks.outputs(host, [(name, part.rows) for part in parts.values()], before_batch)
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
        "scored_on": {split: content(part.examples) for split, part in parts.items()},
        "config": data.run.written(),
        "columns": by_option(data.task.kind, data.columns),
        "history": job.history,
    }
    about |= {"gates": gates} if (gates := adapter.about.get("gates") or job.gates) else {}
    about |= {"weights": host.base.form} if host.base.form else {}
    return replace(adapter, name=job.name, task=task.spec, about=about)


def _place(job: Job) -> dict[str, Any]:
    best = job.best or {"step": job.at, "epoch": round(job.epoch, 3)}
    return {"step": best["step"], "epoch": best["epoch"]}
