"""One step of all active runs: forward, losses, backward, clipping, AdamW. On CUDA all of it is one recording.

Planned on the host and run on tensors alone, as everything below it. The losses are on the device, and hold until the
next step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.bank.tables import Tables
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.work import Work, outputs_of, part
from inlay.heads.head import ROWS, TOKENS
from inlay.tasks import Row, Task
from inlay.training.adamw import AdamW, Settings
from inlay.training.loss import Asked, Losses, plan_losses


@dataclass(frozen=True)
class Part:
    """What one run brings to a step."""

    name: str
    """Of its adapter in the host."""
    task: Task
    rows: Sequence[Row]
    settings: Settings
    key: tuple[int, int]
    """Seed and step, for its noise."""
    dropout: bool = True
    weights: Sequence[float] | None = None
    """Of the classes."""


class Step:
    """Steps of the adapters in a host."""

    def __init__(self, host: Host, optimiser: AdamW):
        self.host = host
        self.optimiser = optimiser

    def __call__(self, parts: Sequence[Part], batch: Batch) -> Tensor:
        """[runs] the losses before the step, without the gates' penalties; `batch` has the rows of all parts."""
        host = self.host
        keys = host.keys({p.name: p.key for p in parts}, [p.name for p in parts if not p.dropout])
        work = host.work(batch, [p.name for p in parts for _ in p.rows], keys)
        shape = work.shape(host.forward)
        losses = plan_losses([self._asked(p) for p in parts], work, shape is not None)
        settings = {host.slot(p.name): p.settings for p in parts}
        more = {"loss " + name: table for name, table in losses.tables.items()}
        more |= {"step " + name: table for name, table in self.optimiser.plan(settings).items()}
        work = replace(work, tables=Tables(work.tables.parts | more))
        if shape is not None:
            shape = ("step", id(self.optimiser), work.shape(host.forward), losses.shape, tuple(settings))

        def run(tables: dict[str, Tensor]) -> tuple[Tensor, object]:
            return self._run(parts, settings, work, losses, tables)

        version = host.forward.bank.version
        before = functools.partial(self.optimiser.make_room, settings)
        found: Tensor = host.graphs.run(version, shape, work.tables, run, before)[0]
        return found

    def _run(
        self,
        parts: Sequence[Part],
        settings: Mapping[int, Settings],
        work: Work,
        losses: Losses,
        tables: Mapping[str, Tensor],
    ) -> tuple[Tensor, object]:
        self.optimiser.zero_grad()  # a recording that failed may have left some
        found = self.backward(parts, work, losses, tables)
        kept = self.optimiser.step(settings, part(tables, "step"))
        self.optimiser.zero_grad()
        return found, (self.optimiser, kept)  # a recording writes to the moments of this optimiser

    def backward(self, parts: Sequence[Part], work: Work, losses: Losses, tables: Mapping[str, Tensor]) -> Tensor:
        """[runs] the losses; their gradients are then in the bank. Nothing else has changed."""
        with torch.enable_grad():
            found = losses.run(outputs_of(self.host.forward, work, tables), part(tables, "loss"), self.host.base)
            penalties = [p for one in parts if (p := self.host.penalty(one.name)) is not None]
            total = found.sum() + sum(penalties)
            total.backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def _asked(self, p: Part) -> Asked:
        slot, place = self.host.slot(p.name), TOKENS if p.task.per_token else ROWS
        mounts = self.host.forward.bank.mounts[place]
        head = next(mount.route for mount in mounts if slot in mount.slots)
        return Asked(slot, p.task, p.rows, self.host.width(p.name), head, p.weights)
