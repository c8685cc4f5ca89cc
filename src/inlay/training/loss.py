"""The losses of all runs in a batch, few calls for all of them: runs of one kind of task and head share one.

As everything in a step, this is planned on the host (`plan_losses`: targets in tables) and run on tensors alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.route import Segments
from inlay.bank.tables import bucket
from inlay.base.load import Base
from inlay.data.batch import repeated
from inlay.engine.answer import Output
from inlay.engine.work import Work, part
from inlay.tasks import NOTHING, Row, Targets, Task, at_units
from inlay.training.share import Share


@dataclass(frozen=True)
class Asked:
    """One run's part of a batch."""

    slot: int
    task: Task
    rows: Sequence[Row]
    labels: int
    """How wide its head is."""
    head: str
    """The route of its head: runs with the same one have their logits in one tensor."""
    weights: Sequence[float] | None = None
    share: Share | None = None
    """Which of the rows are in this batch; None for all."""


@dataclass(frozen=True)
class Losses:
    """All runs' targets."""

    groups: Sequence[tuple[Task, str]]
    """Task and head of each group of runs."""
    runs: int
    tables: Mapping[str, Tensor]

    @property
    def shape(self) -> tuple[object, ...]:
        """What a recording depends on beside the tables."""
        return (self.runs, tuple((task.loss_key, head) for task, head in self.groups))

    def run(self, outputs: Sequence[Output], tables: Mapping[str, Tensor], base: Base) -> Tensor:
        """[runs] the loss of every run, from the tables of this plan on the device."""
        total = torch.zeros(self.runs, dtype=torch.float32, device=base.device)
        for i, (task, head) in enumerate(self.groups):
            own = part(tables, str(i))
            output = next(o for o in outputs if o.mount.route == head and o.per_token == task.per_token)
            units = at_units(output.values, torch.where(own["at"] < 0, -1, own["at"] - output.start).long())
            beyond = torch.arange(units.shape[-1], device=base.device) >= own["labels"].unsqueeze(-1)
            units = units.masked_fill(beyond if units.dim() == 2 else beyond.unsqueeze(1), NOTHING)
            value = own["value"] if own["value"].is_floating_point() else own["value"].long()
            losses = task.losses(units, value, base) * own["weight"]
            # not index_add, whose order varies; nor a product: a NaN stays its own run's
            mine = own["run"] == torch.arange(self.runs, device=base.device).unsqueeze(1)
            total = total + torch.where(mine, losses, 0.0).sum(1)
        return total


def plan_losses(asked: Sequence[Asked], work: Work, roomy: bool) -> Losses:
    """
    Args:
        roomy: round sizes up, so that other batches have the same.
    """
    place: dict[int, tuple[int, int]] = {}
    """Slot -> its first row, and its first token."""
    row = 0
    counts = Counter(work.slots)
    for start, _, slot in Segments(work.slots, work.lengths).runs:
        place[slot] = (row, start)
        row += counts[slot]
    groups: dict[tuple[object, str], list[int]] = {}
    for i, one in enumerate(asked):
        groups.setdefault((one.task.loss_key, one.head), []).append(i)
    tables: dict[str, Tensor] = {}
    for number, members in enumerate(groups.values()):
        found = []
        for i in members:
            one = asked[i]
            targets = one.task.targets(one.rows, one.weights)
            if one.share is not None:
                targets = one.share.of(targets, one.task)
            found.append((i, one, targets, place[one.slot][one.task.per_token]))
        tables |= {f"{number} {name}": table for name, table in _joined(found, roomy).items()}
    firsts = [asked[members[0]] for members in groups.values()]
    return Losses([(one.task, one.head) for one in firsts], len(asked), tables)


def _joined(found: Sequence[tuple[int, Asked, Targets, int]], roomy: bool) -> dict[str, Tensor]:
    """The units of all runs of a group, one after the other; a run has the number of its first output with it."""
    targets = [own for _, _, own, _ in found]
    counts = torch.tensor([len(own.at) for own in targets])
    units = int(counts.sum())
    size = bucket(max(1, units), 8) if roomy else units
    at = _stacked([own.at for own in targets], size, -1, roomy)
    columns = [(i, one.labels, first) for i, one, _, first in found]
    each = repeated(torch.tensor(columns), counts)
    run, labels, firsts = F.pad(each, (0, 0, 0, size - units)).unbind(1)
    return {
        "at": torch.where(at < 0, -1, at + firsts.view(-1, *[1] * (at.dim() - 1))),
        "value": _stacked([own.value for own in targets], size, 0, False),
        "weight": _stacked([own.weight for own in targets], size, 0, False),
        "run": run.index_fill(0, torch.arange(units, size), -1),
        "labels": labels,
    }


def _stacked(parts: Sequence[Tensor], size: int, rest: int, roomy: bool) -> Tensor:
    """Tensors one after the other, all as wide as the widest, in one of `size`."""
    if parts[0].dim() == 1:
        joined = torch.cat(list(parts))
        return F.pad(joined, (0, size - len(joined)), value=rest)
    width = max(p.shape[1] for p in parts)
    width = max(16, 1 << (width - 1).bit_length()) if roomy else width
    out = parts[0].new_full((size, width, *parts[0].shape[2:]), rest)
    at = 0
    for p in parts:
        out[at : at + len(p), : p.shape[1]] = p
        at += len(p)
    return out
