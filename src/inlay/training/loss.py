"""The losses of all runs in a batch, few calls for all of them: runs of one kind of task and head share one.

As everything in a step, this is planned on the host (`plan_losses`) and run on tensors alone (`loss_per_run`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from inlay.bank.planning import rounded
from inlay.bank.records import A, Record, host
from inlay.base.load import Base
from inlay.data.batch import Array
from inlay.engine.outputs import Output
from inlay.tasks import NOTHING, Targets, Task, at_units


@dataclass(frozen=True)
class RunTargets:
    """What one run's rows are compared with."""

    task: Task
    head: int
    """The number of its head's group: runs with the same one have their logits in one tensor."""
    labels: int
    """How wide its head is."""
    first: int
    """The number of its first row in the batch as it runs, or of its first token where it answers for tokens."""
    targets: Targets


@dataclass(frozen=True, eq=False)
class LossPlan(Record, Generic[A]):
    """The units of all runs with one kind of task and one kind of head, one run after the other."""

    at: A
    """[units] or [units, k] which outputs a unit looks at; -1: nothing there."""
    value: A
    """[units, ...] what is right."""
    weight: A
    """[units]"""
    run: A
    """[units] the number of its run; -1 for padding."""
    labels: A
    """[units] how wide its head is."""
    head: int
    per_token: bool
    loss: Hashable
    """What the task's losses depend on."""
    task: Task = host()


def plan_losses(runs: Sequence[RunTargets], roomy: bool) -> tuple[LossPlan[Array], ...]:
    """
    Args:
        roomy: round sizes up, so that other batches have the same.
    """
    numbers_of_call: dict[tuple[Hashable, int], list[int]] = {}
    for number, run in enumerate(runs):
        numbers_of_call.setdefault((run.task.loss_key, run.head), []).append(number)
    return tuple([_plan([runs[i] for i in numbers], numbers, roomy) for numbers in numbers_of_call.values()])


def loss_per_run(plans: Sequence[LossPlan[Tensor]], outputs: Sequence[Output], count: int, base: Base) -> Tensor:
    """[count] the loss of every run."""
    total = torch.zeros(count, dtype=torch.float32, device=base.device)
    of_head = {(out.group, out.per_token): out for out in outputs}
    for plan in plans:
        output = of_head[plan.head, plan.per_token]
        units = at_units(output.values, torch.where(plan.at < 0, -1, plan.at - output.start).long())
        beyond = torch.arange(units.shape[-1], device=base.device) >= plan.labels.unsqueeze(-1)
        units = units.masked_fill(beyond if units.dim() == 2 else beyond.unsqueeze(1), NOTHING)
        value = plan.value if plan.value.is_floating_point() else plan.value.long()
        losses = plan.task.losses(units, value, base) * plan.weight
        # not index_add, whose order varies; nor a product, so that a NaN stays in its own run
        is_of_run = plan.run == torch.arange(count, device=base.device).unsqueeze(1)
        total = total + torch.where(is_of_run, losses, 0.0).sum(1)
    return total


def _plan(runs: Sequence[RunTargets], numbers: Sequence[int], roomy: bool) -> LossPlan[Array]:
    counts = [len(run.targets.at) for run in runs]
    units, task = sum(counts), runs[0].task
    size = rounded(max(1, units), 8) if roomy else units

    def each(values: Sequence[int], filler: int) -> Array:
        column = np.full(size, filler, dtype=np.int32)
        column[:units] = np.repeat(np.array(values, dtype=np.int32), counts)
        return column

    at = _joined([run.targets.at for run in runs], size, -1, roomy)
    first = each([run.first for run in runs], 0).reshape(-1, *[1] * (at.ndim - 1))
    return LossPlan(
        at=np.where(at < 0, -1, at + first),
        value=_joined([run.targets.value for run in runs], size, 0, False),
        weight=_joined([run.targets.weight for run in runs], size, 0, False),
        run=each(numbers, -1),
        labels=each([run.labels for run in runs], 0),
        head=runs[0].head,
        per_token=task.per_token,
        loss=task.loss_key,
        task=task,
    )


def _joined(parts: Sequence[Array], size: int, filler: int, roomy: bool) -> Array:
    """Arrays one after the other, all as wide as the widest, in one of `size`."""
    if parts[0].ndim == 1:
        flat = np.concatenate(parts)
        return np.concatenate([flat, np.full(size - len(flat), filler, dtype=flat.dtype)])
    width = max(part.shape[1] for part in parts)
    width = max(16, 1 << (width - 1).bit_length()) if roomy else width
    joined = np.full((size, width, *parts[0].shape[2:]), filler, dtype=parts[0].dtype)
    at = 0
    for part in parts:
        joined[at : at + len(part), : part.shape[1]] = part
        at += len(part)
    return joined
