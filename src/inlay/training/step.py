"""One step of all active runs, as one batch. Read `Step` downwards: plan, forward, losses, backward, update.

Everything is planned on the host, copied to the device at once and run on tensors alone, so that on CUDA a whole step
is one recording. The losses are on the device, and hold until the next step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor

from inlay.bank.noise import Keys
from inlay.bank.records import A, Record, host, on_device, shape_of
from inlay.data.batch import Array, Batch
from inlay.engine.graphs import Shape
from inlay.engine.host import Host
from inlay.engine.run import BatchPlan, plan_with_heads, run_batch
from inlay.tasks import Row, Task
from inlay.training.adamw import AdamW, Settings, UpdatePlan
from inlay.training.job import Job
from inlay.training.loss import LossPlan, RunTargets, loss_per_run, plan_losses
from inlay.training.parallel import ALONE, Ranks, Share


@dataclass(frozen=True)
class RunStep:
    """What one run brings to a step."""

    name: str
    """The name of its adapter in the host."""
    task: Task
    rows: Sequence[Row]
    settings: Settings
    key: tuple[int, int]
    """Seed and step, for its noise."""
    dropout: bool = True
    weights: Sequence[float] | None = None
    """The weights of the classes."""
    attention_dropout: bool = False
    head_dropout: float | None = None
    share: Share | None = None
    """Which of the rows this process runs; None for all."""

    @property
    def mine(self) -> Sequence[Row]:
        """The rows that this process runs."""
        return self.rows if self.share is None else self.share.rows_of(self.rows)


@dataclass(frozen=True, eq=False)
class StepPlan(Record, Generic[A]):
    """All numbers of a step."""

    batch: BatchPlan[A]
    losses: tuple[LossPlan[A], ...]
    update: UpdatePlan[A]
    runs: int
    slots: tuple[int, ...] = host()


class Step:
    """Steps of the adapters in a host."""

    def __init__(self, host: Host, optimiser: AdamW, ranks: Ranks = ALONE):
        self.host = host
        self.optimiser = optimiser
        self.ranks = ranks

    def __call__(self, runs: Sequence[RunStep], batch: Batch) -> Tensor:
        """[runs] the losses before the step, without the gates' penalties; `batch` has the rows of all runs.

        Of several processes each has a batch of its own rows, and all get the losses of all rows.
        """
        with self.host.lock:
            # 1. Who goes where, as arrays: rows sorted by slot, tokens packed, noise, targets, every run's settings.
            plan = self.plan(runs, batch)
            # 2. To the device in one copy; on CUDA, from the second step of a shape on, as one recording.
            if self.ranks.size > 1:  # an exchange cannot be recorded
                with self.host.graphs.here():
                    return self._on_device(plan)[0]
            shape, before = self._shape(plan), functools.partial(self.optimiser.make_room, plan.update.of_slot)
            losses: Tensor = self.host.run_recorded(plan, shape, self._on_device, before)[0]
            return losses

    def plan(self, runs: Sequence[RunStep], batch: Batch) -> StepPlan[Array]:
        """The numbers of a step."""
        host = self.host
        names = [run.name for run in runs for _ in run.mine]
        rows, _ = plan_with_heads(host, batch, names, self._keys(runs))
        slots = tuple([host.slot(run.name) for run in runs])
        records = rows.is_fixed and self.ranks.size == 1
        losses = plan_losses(list(self._targets(runs, slots, rows)), roomy=records)
        update = self.optimiser.plan(dict(zip(slots, [run.settings for run in runs], strict=True)))
        return StepPlan(rows, losses, update, len(runs), slots)

    def _on_device(self, plan: StepPlan[Any]) -> tuple[Tensor, object]:
        """Memory may run out before the update, which then has changed nothing; the update itself takes none."""
        self.optimiser.zero_grad()  # a recording that failed may have left some
        with self.ranks.agreeing():
            if self.ranks.size > 1:
                plan = on_device(plan, self.host.base.device)
            # 3. to 5.
            losses = self.backward(plan)
            exchange = self.ranks.adding(self._exchanged(losses, plan.slots))
        exchange()
        # 6. Clip and update every slot with its own rate.
        with self.ranks.agreeing():
            update = self.optimiser.prepare(plan.update)
        kept = update()
        self.optimiser.zero_grad()
        return losses, (self.optimiser, kept)  # a recording writes to the moments of this optimiser

    def backward(self, plan: StepPlan[Tensor]) -> Tensor:
        """[runs] the losses; their gradients are then in the bank. Nothing else has changed."""
        forward, bank = self.host.forward, self.host.forward.bank
        with torch.enable_grad():
            # 3. Through the frozen base, where adapters act along their routes, and through the heads.
            outputs = run_batch(forward, plan.batch)
            # 4. One loss per run, one call for every kind of task and head.
            losses = loss_per_run(plan.losses, outputs, plan.runs, self.host.base)
            penalties = [p for slot in plan.slots if (p := bank.penalty(slot)) is not None]
            # 5. All gradients at once: the runs' parameters are disjoint.
            total = losses.sum() + sum(penalties) / self.ranks.size
            total.backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    def _shape(self, plan: StepPlan[Array]) -> Shape | None:
        if not plan.batch.is_fixed or self.host.forward.wiring.checkpointing:
            return None
        return Shape(("step", id(self.optimiser), shape_of(plan)), plan.batch.groups)

    def _targets(self, runs: Sequence[RunStep], slots: Sequence[int], plan: BatchPlan[Array]) -> Iterator[RunTargets]:
        heads = plan.heads
        assert heads is not None
        starts = heads.bounds[:-1]
        tokens = (heads.lengths.cumsum() - heads.lengths)[starts].tolist()
        slots_here = plan.slots[starts].tolist()
        row, token = dict(zip(slots_here, starts.tolist(), strict=True)), dict(zip(slots_here, tokens, strict=True))
        for run, slot in zip(runs, slots, strict=True):
            targets = run.task.targets(run.rows, run.weights)
            if run.share is not None:
                targets = run.share.of(targets, run.task)
            group = self.host.forward.bank.slot(slot).head
            assert group is not None
            first = token[slot] if run.task.per_token else row[slot]
            yield RunTargets(run.task, group.number, self.host.loaded(run.name).width, first, targets)

    def _keys(self, runs: Sequence[RunStep]) -> Keys:
        keys = self.host.keys({run.name: run.key for run in runs}, [run.name for run in runs if not run.dropout])
        shares = {self.host.slot(run.name): run.share for run in runs if run.share is not None}
        before = {slot: share.tokens[0] for slot, share in shares.items()}
        drops = frozenset(self.host.slot(run.name) for run in runs if run.attention_dropout)
        heads = {self.host.slot(run.name): run.head_dropout for run in runs if run.head_dropout is not None}
        keys = replace(keys, attention_dropout=drops, head_dropout=heads)
        return replace(keys, tokens_before=before, rows_before={slot: s.rows[0] for slot, s in shares.items()})

    def _exchanged(self, losses: Tensor, slots: Iterable[int]) -> Iterator[Tensor]:
        """The losses, and views of the gradients of these slots, in an order that is the same in every process."""
        yield losses
        for stacks in self.host.forward.bank.trained(frozenset(slots)):
            for tensor in stacks.tensors.values():
                if tensor.grad is not None:
                    tensor.grad = grad = tensor.grad.contiguous()
                    yield from [grad] if stacks.entries is None else (grad[entry] for entry in stacks.entries)


class PendingLosses:
    """The runs of a step, and their losses once they are waited for: on CUDA they come when the device is done."""

    def __init__(self, steps: Sequence[tuple[Job, int, float]], losses: Tensor):
        self.steps = steps
        """(run, step, learning rate)"""
        self._losses = losses
        self._done: Any = None
        if losses.is_cuda:
            with torch.cuda.device(losses.device):  # an event belongs to the device it is made on
                room = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
                self._losses = room.copy_(losses, non_blocking=True)
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._done.record()

    def losses(self) -> list[float]:
        """The loss of every run."""
        if self._done is not None:
            self._done.synchronize()
        return self._losses.tolist()
