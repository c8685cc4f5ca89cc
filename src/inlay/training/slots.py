"""Runs in slots: their adapters in the host, their moments in the optimiser, and those that had to make room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from inlay.bank import sparse
from inlay.bank.bank import Bank
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.training.adamw import AdamW
from inlay.training.job import Job
from inlay.training.parallel import ALONE, Ranks
from inlay.training.step import Step

Places = list[list[tuple[int, int]]]
"""For every slot and each of its groups: (the group's rank in the bank, the slot's entry in it)."""


class Snapshot(NamedTuple):
    """All of a run that lives in tensors, on the CPU."""

    adapter: Adapter
    first: dict[str, Tensor]
    second: dict[str, Tensor]


class Slots:
    """The active runs, and where their tensors are."""

    def __init__(self, host: Host, ranks: Ranks = ALONE):
        self.host = host
        self.ranks = ranks
        self.optimiser = AdamW(host.forward)
        self.step = Step(host, self.optimiser, ranks)
        self.active: list[Job] = []
        self.aside: dict[int, Snapshot] = {}
        """Runs that wait after they have begun, by index."""

    def numbers(self) -> list[int]:
        """The slots of the active runs."""
        return [self.host.slot(slot_name(job)) for job in self.active]

    def groups(self) -> list[list[Job]]:
        """The active runs, grouped by which step together: those in the bank, and each that changes weights alone.

        Those that drop attention probabilities are padded and not recorded, so the others step without them. The order
        is that of the bank, so that a batch of theirs need not be sorted.
        """
        forward = self.host.forward
        slots = {job.index: self.host.slot(slot_name(job)) for job in self.active}
        ordered = sorted(self.active, key=lambda job: forward.bank.ranks[slots[job.index]])
        together = [job for job in ordered if forward.bank.slot(slots[job.index]).weights is None]
        alone = [[job] for job in ordered if forward.bank.slot(slots[job.index]).weights is not None]
        kinds = [[job for job in together if job.data.run.attention_dropout is kind] for kind in (False, True)]
        return [*filter(None, kinds), *alone]

    def has_gates(self, job: Job) -> bool:
        """Whether a run's slot holds gates, which are dropped at its end."""
        return self.host.forward.bank.slot(self.host.slot(slot_name(job))).has_gates

    def begin(self, job: Job) -> None:
        """Load a run into a slot: fresh, or as it was put aside. If memory runs out, it is as before, and may wait."""
        try:
            with self.ranks.agreeing():
                self._load(job)
        except torch.OutOfMemoryError:
            if slot_name(job) in self.host:
                self.host.unload(slot_name(job))
            self.optimiser.drop_unused()
            raise
        self.aside.pop(job.index, None)
        job.state = "active"
        self.active.append(job)

    def _load(self, job: Job) -> None:
        name = slot_name(job)
        if job.index in self.aside:
            adapter, first, second = self.aside[job.index]
            self.host.load(adapter, name)
            self.optimiser.write(self.host.slot(name), first, second)
        else:
            self._add(job)

    def leave(self, job: Job) -> None:
        """Take a run out of its slot."""
        self.optimiser.forget(self.host.slot(slot_name(job)))
        self.active.remove(job)
        self.host.unload(slot_name(job))
        self.optimiser.drop_unused()

    def put_aside(self, job: Job) -> None:
        """Take a run out of its slot, to go on later."""
        self.aside[job.index] = self.snapshot(job)
        self.leave(job)
        job.state = "waiting"

    def clear(self) -> None:
        """Take all runs out."""
        for job in self.active:
            if slot_name(job) in self.host:
                self.host.unload(slot_name(job))
        self.active = []

    def back_to_best(self, job: Job) -> None:
        """Give a run the best state it had."""
        name = slot_name(job)
        if job.best_tensors:
            self.host.write(name, _dense(job.best_tensors, self.host.read(name)))

    def enter_stage(self, job: Job, finished: Adapter | None = None) -> None:
        """Make the adapter of a run's next stage from that of the stage before, or take `finished`.

        If memory runs out for `finished`, the run waits until there is some.
        """
        name = slot_name(job)
        if finished is not None:
            place = self.active.index(job)
            self.leave(job)
            self.aside[job.index], job.state = Snapshot(finished, {}, {}), "waiting"
            self.begin(job)
            self.active.insert(place, self.active.pop())
        else:
            self.optimiser.forget(self.host.slot(name))
            kept = {} if job.stage.starts_over else job.data.method.params(self.host.base.sites)
            tensors = {n: t for n, t in self.host.read(name).items() if n in kept}
            self.host.unload(name)
            with self.ranks.agreeing():
                self._add(job)
                self.host.write(name, tensors)
        self.optimiser.drop_unused()

    def refuse_diverged(self, job: Job) -> None:
        """An error if a run's last step left numbers that are not finite; its next loss would say so too."""
        if not all(torch.isfinite(tensor).all() for tensor in self.host.read(slot_name(job), "cpu").values()):
            raise RunError(f"the weights of {job.name} are not finite after step {job.at}; try a lower learning rate")

    def snapshot(self, job: Job) -> Snapshot:
        """A copy of a run's tensors."""
        first, second = self.optimiser.read(self.host.slot(slot_name(job)))
        return Snapshot(self.host.adapter(slot_name(job)), first, second)

    def adapter_around(self, job: Job, tensors: dict[str, Tensor]) -> Adapter:
        """The adapter of a run's stage with these tensors in it."""
        self._add(job)
        like = self.host.adapter(slot_name(job))
        self.host.unload(slot_name(job))
        return replace(like, tensors=tensors)

    def take_places(self, places: Places, snapshots: Mapping[int, Snapshot]) -> None:
        """Move the active runs to the places they had in the bank, with their moments."""
        with self.host.lock:
            restore_places(self.host.forward.bank, self.numbers(), places)
        self.optimiser = self.step.optimiser = AdamW(self.host.forward)
        for job, slot in zip(self.active, self.numbers(), strict=True):
            self.optimiser.write(slot, snapshots[job.index].first, snapshots[job.index].second)

    def _add(self, job: Job) -> None:
        run, stage = job.data.run, job.stage
        task = job.data.task if stage.kind == "contrast" else stage.task  # contrast has no registered name
        head = stage.task.head or run.head
        options = {"labels": stage.labels, "task": task, "head": head, "pool": run.pool, "seed": run.seed}
        self.host.add(slot_name(job), job.data.method, **options)  # type: ignore[arg-type]
        self.optimiser.forget(self.host.slot(slot_name(job)))


def slot_name(job: Job) -> str:
    """The name of a run's adapter while it trains; no user's name looks like this."""
    return f" run {job.index}"


def _dense(stored: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors under the names they have in a slot; constants are not stored and stay."""
    tensors = {}
    for name, value in now.items():
        tensor = stored.get(name)
        if tensor is None and name + sparse.INDEX in stored:
            tensor = sparse.decode(stored, name, tuple(value.shape))
        if tensor is not None:
            tensors[name] = tensor
    return tensors


def places_of(bank: Bank, slots: Sequence[int]) -> Places:
    """Where slots are in the bank. They come and go and leave holes, and the next run takes the lowest. The order of
    entries decides the order of rows in a batch, and with it the last bits of products, so a checkpoint keeps it.
    """
    rank = {group.number: i for i, group in enumerate(bank.groups.values())}
    return [[(rank[group.number], entry) for group, entry in bank.places_in_groups(slot)] for slot in slots]


def restore_places(bank: Bank, slots: Sequence[int], places: Sequence[Sequence[Sequence[int]]]) -> None:
    """Move these slots to where `places_of` found them; other slots make way. Moments do not move along."""
    bank.move({slot: [(rank, entry) for rank, entry in of_slot] for slot, of_slot in zip(slots, places, strict=True)})
