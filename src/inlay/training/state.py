"""The state of a loop as a checkpoint keeps it, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.library.defaults import restated
from inlay.training.checkpoint import Checkpoint
from inlay.training.job import STATE, Job
from inlay.training.slots import Slots, Snapshot, places_of


def write(checkpoint: Checkpoint, jobs: Sequence[Job], slots: Slots, most: int) -> None:
    """Save all runs: where they are, and the tensors of those that have begun and not ended.

    Args:
        most: how many runs are active at once.
    """
    base = slots.host.base.identity(True)
    places = places_of(slots.host.forward.bank, slots.numbers())
    active = [job.index for job in slots.active]
    state: dict[str, Any] = {"base": base, "slots": most, "active": active, "layout": places, "jobs": []}
    tensors: dict[str, Tensor] = {"": torch.zeros(1)}
    for job in jobs:
        fields = {name: getattr(job, name) for name in STATE}
        fields |= {"data": job.data.data_hash, "teacher": job.data.teacher, "config": job.data.run.written()}
        state["jobs"].append(fields)
        snapshot = slots.snapshot(job) if job in slots.active else slots.aside.get(job.index)
        if snapshot is not None:
            parts = {"now": snapshot.adapter.tensors, "first": snapshot.first, "second": snapshot.second}
            for part, part_tensors in (parts | {"best": job.best_tensors}).items():
                tensors |= {f"{job.index}/{part}/{name}": tensor for name, tensor in part_tensors.items()}
    checkpoint.save(state, tensors)


def read(
    checkpoint: Checkpoint, jobs: Sequence[Job], slots: Slots, more: bool = False
) -> tuple[int, dict[int, Adapter]]:
    """Take up what was saved: how many runs at once, and the adapters of finished runs.

    The runs, their data and the base must be the same.

    Args:
        more: there may be further runs after those that were saved.
    """
    state, tensors = checkpoint.read()
    base = slots.host.base
    if state["base"] != base.identity(True):
        raise RunError(f"the checkpoint {checkpoint.folder} is of another base than {base.name}")
    if len(state["jobs"]) > len(jobs) or (len(state["jobs"]) < len(jobs) and not more):
        raise RunError(f"the checkpoint has {len(state['jobs'])} runs, not {len(jobs)}")
    finished: dict[int, Adapter] = {}
    for job, saved in zip(jobs, state["jobs"], strict=False):
        _refuse_change(job, saved.pop("config"), saved.pop("data"), saved.pop("teacher", {}))
        for name, value in saved.items():
            setattr(job, name, value)
        job.best_tensors = _with_prefix(tensors, f"{job.index}/best/")
        if job.state == "done":
            finished[job.index] = checkpoint.kept(job.index)
        elif now := _with_prefix(tensors, f"{job.index}/now/"):
            moments = (_with_prefix(tensors, f"{job.index}/{part}/") for part in ("first", "second"))
            slots.aside[job.index] = Snapshot(slots.adapter_around(job, now), *moments)
    snapshots = dict(slots.aside)
    for index in state["active"]:
        slots.begin(jobs[index])
    slots.take_places(state["layout"], snapshots)
    return state["slots"], finished


def _refuse_change(job: Job, config: Mapping[str, Any], data: str, teacher: Mapping[str, Any]) -> None:
    now = job.data.run.written()
    if teacher and job.data.teacher and teacher["ref"] != job.data.teacher["ref"]:
        raise RunError(
            f"{job.name} started with the teacher {teacher['ref']}, not {job.data.teacher['ref']}; "
            f"pass --teacher {teacher['ref']} to resume, or start over (--restart)"
        )
    config, now = restated(config), restated(now)
    if config != now:
        changed = sorted(key for key in config.keys() | now.keys() if config.get(key) != now.get(key))
        listed = ", ".join(f"{key} (it was {config[key]})" if key in config else key for key in changed)
        raise RunError(
            f"the settings of {job.name} have changed since it started: {listed}; use the same ones to "
            f"resume, or start over (--restart)"
        )
    if data != job.data.data_hash:
        raise RunError(f"the data of {job.name} has changed since the checkpoint was written")
    if teacher != job.data.teacher:
        new = teacher.get("texts") != job.data.teacher.get("texts")
        source = "file of unlabelled texts" if new else "teacher, or the data that it was trained on,"
        raise RunError(f"the {source} of {job.name} has changed since the checkpoint was written")


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
