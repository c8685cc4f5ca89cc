"""One step of all active runs: forward, losses, backward, clipping, AdamW. On CUDA all of it is one recording.

Planned on the host and run on tensors alone, as everything below it. The losses are on the device, and hold until the
next step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.bank.noise import Keys
from inlay.bank.tables import Tables
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.work import Work, outputs_of, part
from inlay.heads.head import ROWS, TOKENS
from inlay.tasks import Row, Task
from inlay.training.adamw import AdamW, Settings
from inlay.training.loss import Asked, Losses, plan_losses
from inlay.training.parallel import ALONE, Ranks
from inlay.training.share import Share


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
    share: Share | None = None
    """Which of the rows this process runs; None for all."""

    @property
    def mine(self) -> Sequence[Row]:
        """The rows that this process runs."""
        return self.rows if self.share is None else self.share.rows_of(self.rows)


class Step:
    """Steps of the adapters in a host."""

    def __init__(self, host: Host, optimiser: AdamW, ranks: Ranks = ALONE):
        self.host = host
        self.optimiser = optimiser
        self.ranks = ranks

    def __call__(self, parts: Sequence[Part], batch: Batch) -> Tensor:
        """[runs] the losses before the step, without the gates' penalties; `batch` has the rows of all parts.

        Of several processes each has a batch of its own rows, and all get the losses of all rows.
        """
        with self.host.lock:
            return self._one(parts, batch)

    def _one(self, parts: Sequence[Part], batch: Batch) -> Tensor:
        host = self.host
        work = host.work(batch, [p.name for p in parts for _ in p.mine], self._keys(parts))
        shape = work.shape(host.forward) if self.ranks.size == 1 else None  # an exchange cannot be recorded
        losses = plan_losses([self._asked(p) for p in parts], work, shape is not None)
        settings = {host.slot(p.name): p.settings for p in parts}
        more = {"loss " + name: table for name, table in losses.tables.items()}
        more |= {"step " + name: table for name, table in self.optimiser.plan(settings).items()}
        work = replace(work, tables=Tables(work.tables.parts | more))
        if self.ranks.size > 1:
            with host.graphs.here():
                return self._run(parts, settings, work, losses, None)[0]
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
        tables: Mapping[str, Tensor] | None,
    ) -> tuple[Tensor, object]:
        """Memory may run out before the update, which then has changed nothing; the update itself takes none."""
        self.optimiser.zero_grad()  # a recording that failed may have left some
        with self.ranks.agreeing():
            if tables is None:
                tables = work.tables.to(self.host.base.device)
            found = self.backward(parts, work, losses, tables)
            exchange = self.ranks.adding(itertools.chain([found], self._gradients(settings)))
        exchange()
        with self.ranks.agreeing():
            update = self.optimiser.prepare(settings, part(tables, "step"))
        kept = update()
        self.optimiser.zero_grad()
        return found, (self.optimiser, kept)  # a recording writes to the moments of this optimiser

    def backward(self, parts: Sequence[Part], work: Work, losses: Losses, tables: Mapping[str, Tensor]) -> Tensor:
        """[runs] the losses; their gradients are then in the bank. Nothing else has changed."""
        with torch.enable_grad():
            found = losses.run(outputs_of(self.host.forward, work, tables), part(tables, "loss"), self.host.base)
            penalties = [p for one in parts if (p := self.host.penalty(one.name)) is not None]
            total = found.sum() + sum(penalties) / self.ranks.size
            total.backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def _asked(self, p: Part) -> Asked:
        slot, place = self.host.slot(p.name), TOKENS if p.task.per_token else ROWS
        mounts = self.host.forward.bank.mounts[place]
        head = next(mount.route for mount in mounts if slot in mount.slots)
        return Asked(slot, p.task, p.rows, self.host.width(p.name), head, p.weights, p.share)

    def _keys(self, parts: Sequence[Part]) -> Keys:
        keys = self.host.keys({p.name: p.key for p in parts}, [p.name for p in parts if not p.dropout])
        shares = {self.host.slot(p.name): p.share for p in parts if p.share is not None}
        before = {slot: share.tokens[0] for slot, share in shares.items()}
        return replace(keys, tokens_before=before, rows_before={slot: s.rows[0] for slot, s in shares.items()})

    def _gradients(self, slots: Iterable[int]) -> Iterator[Tensor]:
        """Views of the gradients of these slots, in an order that is the same in every process."""
        forward, mine = self.host.forward, set(slots)
        for group in forward.bank.groups.values():
            entries = [entry for slot, entry in group.entry_of.items() if slot in mine]
            for stack in group.stacks.values():
                if stack.grad is not None:
                    stack.grad = stack.grad.contiguous()
                    yield from (stack.grad[entry] for entry in entries)
        for slot in sorted(mine & forward.weights.keys()):
            for p in forward.weights[slot].parameters():
                if p.grad is not None:
                    p.grad = p.grad.contiguous()
                    yield p.grad
