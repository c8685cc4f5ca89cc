"""What the frozen lower layers give, computed once: for runs that leave them alone (`layers=top3`) and have no dropout.

The states of a run's rows are computed when it begins, in batches that depend on the rows alone, so a run that is
resumed sees the same bits. They stay where the base is; runs with more rows than fit do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.predict import batch_of, cut
from inlay.engine.watch import states_below
from inlay.tasks import Row
from inlay.training.job import Job

_ROOM = {"cuda": 8 << 30, "cpu": 2 << 30}
"""Bytes; fixed, because what is free now may differ when a run is resumed."""
_TOKENS = 8192


class Cache:
    """States of rows at one layer."""

    def __init__(self, host: Host):
        self.host = host
        self._room, self._most = False, _ROOM.get(host.base.device.type, 0)
        self._tokens: dict[tuple[int, int], int] = {}
        self._states: dict[tuple[int, int], tuple[int, dict[int, Tensor]]] = {}
        """(run, stage) -> a layer, and id of a row -> [tokens, d] there; the runs keep their rows alive."""

    def keep(self, active: Sequence[Job]) -> None:
        """Note which runs are active, and whether there is room for all their rows; drop the states of other runs."""
        base, steady = self.host.base, [job for job in active if _is_steady(job)]
        for job in steady:
            if _key(job) not in self._tokens:
                self._tokens[_key(job)] = sum(len(row.ids) for row in job.stage.rows)
        tokens = sum(self._tokens[_key(job)] for job in steady)
        self._room = tokens * base.sites.hidden * base.dtype.itemsize <= self._most
        for key in self._states.keys() - {_key(job) for job in active if self._room}:
            del self._states[key]

    def batch(self, parts: Sequence[tuple[Job, int, Sequence[Row]]]) -> Batch:
        """A batch of the rows of (run, slot, rows), which begins as high up as all of them allow."""
        batch = batch_of([row for _, _, rows in parts for row in rows])
        layer = self.begins_at(parts)
        if not layer:
            return batch
        for job, _, _ in parts:
            if _key(job) not in self._states or self._states[_key(job)][0] != layer:
                self._states[_key(job)] = layer, self._compute(job.stage.rows, layer)
        states = [self._states[_key(job)][1][id(row)] for job, _, rows in parts for row in rows]
        return replace(batch, states=torch.cat(states), layer=layer)

    def give_up(self) -> None:
        """There is no room for states after all: from now on batches begin at the first layer."""
        self._states, self._room, self._most = {}, False, 0

    def begins_at(self, parts: Sequence[tuple[Job, int, Sequence[Row]]]) -> int:
        """The layer at which all of these runs can begin; 0 if one of them cannot, or if there is no room."""
        if not self._room or not self.host.base.sites.arch.packable or not all(_is_steady(job) for job, _, _ in parts):
            return 0
        return min(self.host.forward.first_adapted_layer(slot) for _, slot, _ in parts)

    def _compute(self, rows: Sequence[Row], layer: int) -> dict[int, Tensor]:
        state_of_row: dict[int, Tensor] = {}
        for batch in cut([len(row.ids) for row in rows], _TOKENS):
            chosen = [rows[i] for i in batch.tolist()]
            with self.host.lock:
                states = states_below(self.host.forward, batch_of(chosen), layer)
            parts = torch.split(states, [len(row.ids) for row in chosen])
            state_of_row |= {id(row): part for row, part in zip(chosen, parts, strict=True)}
        return state_of_row


def _key(job: Job) -> tuple[int, int]:
    return job.index, job.stage_index


def _is_steady(job: Job) -> bool:
    """Whether a row goes through the lower layers the same way every time."""
    quiet = not job.data.run.dropout or bool(job.data.method.mixout)
    return quiet and not job.stage.task.draws
