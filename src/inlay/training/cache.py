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
from inlay.engine.predict import batch_of, chunks
from inlay.tasks import Row
from inlay.training.job import Job

_ROOM = {"cuda": 8 << 30, "cpu": 2 << 30}
"""Bytes; fixed, because what is free now may differ when a run is resumed."""
_TOKENS = 8192


class Cache:
    """States of rows at one layer."""

    def __init__(self, host: Host):
        self.host = host
        self.layer = 0
        self._states: dict[tuple[int, int], dict[int, Tensor]] = {}
        """(run, stage) -> id of a row -> [tokens, d]; the runs keep their rows alive."""

    def batch(self, active: Sequence[tuple[Job, int, Sequence[Row]]]) -> Batch:
        """A batch of the rows of (run, slot, rows), which begins as high up as all of them allow."""
        batch = batch_of([row for _, _, rows in active for row in rows])
        layer = self._common(active)
        if layer != self.layer:
            self.layer, self._states = layer, {}
        here = {(job.index, job.stage_index): job for job, _, _ in active}
        for gone in self._states.keys() - here.keys():
            del self._states[gone]
        if not layer:
            return batch
        for key in here.keys() - self._states.keys():
            self._states[key] = self._compute(here[key].stage.rows)
        found = [self._states[job.index, job.stage_index][id(row)] for job, _, rows in active for row in rows]
        return replace(batch, states=torch.cat(found), layer=layer)

    def _common(self, active: Sequence[tuple[Job, int, Sequence[Row]]]) -> int:
        """The layer at which all runs can begin; 0 if one of them cannot, or if there is no room."""
        base = self.host.base
        if not base.sites.arch.packable or not all(_is_still(job) for job, _, _ in active):
            return 0
        tokens = sum(len(row.ids) for job, _, _ in active for row in job.stage.rows)
        if tokens * base.sites.hidden * base.dtype.itemsize > _ROOM.get(base.device.type, 0):
            return 0
        return min(self.host.forward.lowest(slot) for _, slot, _ in active)

    def _compute(self, rows: Sequence[Row]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for chunk in chunks([len(row.ids) for row in rows], _TOKENS):
            some = [rows[i] for i in chunk]
            states = self.host.forward.below(batch_of(some), self.layer)
            parts = torch.split(states, [len(row.ids) for row in some])
            found |= {id(row): part for row, part in zip(some, parts, strict=True)}
        return found


def _is_still(job: Job) -> bool:
    """Whether a row goes through the lower layers the same way every time."""
    quiet = not job.data.run.dropout or bool(job.data.method.mixout)
    return quiet and not job.stage.task.draws
