"""Run a batch on a host: plan it, run it, and give every row its result.

Work of the same shape can be recorded once and replayed with other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import torch
from torch import Tensor

from inlay.bank.forward import Forward
from inlay.bank.noise import Keys
from inlay.bank.plan import PassPlan
from inlay.bank.planning import owners_of
from inlay.bank.records import A, Record, host, shape_of
from inlay.data.batch import Array, Batch
from inlay.engine.graphs import GroupState, Shape
from inlay.engine.outputs import HeadPlan, Output, apply_heads, by_run, plan_heads, rows_of
from inlay.errors import InlayError, SlotError

if TYPE_CHECKING:
    from inlay.engine.host import Host


@dataclass(frozen=True, eq=False)
class BatchPlan(Record, Generic[A]):
    """The passes of a batch, and its heads."""

    passes: tuple[PassPlan[A], ...]
    heads: HeadPlan[A] | None
    """None to stop at the hidden states."""
    compiled: bool
    order: Array = host()
    """The row of the batch that runs first, second ...; the next two are in this order too."""
    slots: Array = host()
    lengths: Array = host()

    @property
    def is_fixed(self) -> bool:
        """Whether it can be recorded."""
        return len(self.passes) == 1 and self.passes[0].is_fixed

    @property
    def groups(self) -> frozenset[GroupState]:
        """The groups that take part."""
        runs = [plan.runs for plan in self.passes]
        if self.heads is not None:
            runs += [place.runs for place in (self.heads.rows, self.heads.tokens) if place is not None]
        return frozenset(state for run in runs for state in run.groups)

    def shape(self, work: str) -> Shape | None:
        """What a recording of work with this plan depends on; None if it cannot be recorded."""
        return Shape((work, shape_of(self)), self.groups) if self.is_fixed else None


def plan_batch(
    forward: Forward,
    batch: Batch,
    slots: Array,
    pools: Mapping[int, str] | None,
    keys: Keys | None = None,
    packed: bool | None = None,
) -> BatchPlan[Array]:
    """
    Args:
        slots: the slot of every row.
        pools: how each slot pools its rows; None to stop at the hidden states.
    """
    passes = tuple(forward.plan(batch, slots, keys, packed))
    order = np.concatenate([plan.rows for plan in passes])
    slots, lengths, heads = slots[order], batch.lengths[order], None
    if pools is not None:
        is_padded_at_the_end = len(passes) == 1 and passes[0].tokens.valid is None
        tokens = passes[0].tokens.size if is_padded_at_the_end else int(lengths.sum())
        owners = passes[0].owners if len(passes) == 1 else owners_of(forward.bank, slots)
        heads = plan_heads(forward, owners, lengths, tokens, pools, keys)
    return BatchPlan(passes, heads, forward.compiled, order, slots, lengths)


def run_passes(forward: Forward, plan: BatchPlan[Tensor]) -> Tensor:
    """[tokens, d] the last hidden states, in the order rows run; there may be padding at the end."""
    results = [forward.run(pass_plan) for pass_plan in plan.passes]
    if len(results) == 1:
        return results[0]
    return torch.cat([states[: int(p.lengths.sum())] for p, states in zip(plan.passes, results, strict=True)])


def run_batch(forward: Forward, plan: BatchPlan[Tensor]) -> list[Output]:
    """The outputs of the heads."""
    assert plan.heads is not None
    return apply_heads(forward, plan.heads, run_passes(forward, plan))


@dataclass(frozen=True)
class Hidden:
    """The last hidden states of a batch, in the order the rows were run."""

    states: Tensor
    """[tokens, d]; there may be more tokens at the end, which belong to no row."""
    lengths: Array
    slots: Array
    order: Array
    """The row of the batch that ran first, second ..."""

    def rows(self) -> list[Tensor]:
        """[length, d] of every row, in the batch's own order."""
        return in_order(torch.split(self.states[: int(self.lengths.sum())], self.lengths.tolist()), self.order.tolist())


def in_order(rows: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """Put rows back to where they came from."""
    out = list(rows)
    for row, place in zip(rows, order, strict=True):
        out[place] = row
    return out


def hidden(host: Host, batch: Batch, names: Sequence[str | None], keys: Keys | None, packed: bool | None) -> Hidden:
    """The last hidden states; see `Host.hidden`."""
    refuse_closed(host)
    plan = plan_batch(host.forward, batch, slots_of(host, names), None, keys, packed)
    states: Tensor = _run(host, plan, "states", functools.partial(run_passes, host.forward))
    return Hidden(states if torch.is_grad_enabled() else states.clone(), plan.lengths, plan.slots, plan.order)


def logits(
    host: Host, batch: Batch, names: Sequence[str | None], keys: Keys | None, packed: bool | None
) -> list[Tensor]:
    """[labels] of every row, or [tokens, labels]; see `Host.logits`."""
    plan, heads, widths, outputs = _outputs(host, batch, names, keys, packed)
    if not torch.is_grad_enabled():  # a recording's own results are overwritten by the next run
        outputs = [replace(out, values=out.values.clone()) for out in outputs]
    rows: list[Tensor] = [torch.empty(0)] * len(names)
    for run in by_run(outputs, heads, widths):
        values = run.output.values[run.first : run.last, : run.width]
        lengths = plan.lengths[slice(*run.rows)].tolist()
        rows_of_run = torch.split(values, lengths) if run.output.per_token else values.unbind()
        for place, row in zip(plan.order[slice(*run.rows)].tolist(), rows_of_run, strict=True):
            rows[place] = row
    return rows


@torch.no_grad()
def logits_on_cpu(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor]:
    """Like `logits`, without gradients, on the CPU and in fp32: one copy from the device, not one per row."""
    plan, heads, widths, outputs = _outputs(host, batch, names, None, None)
    logits: list[Tensor] = [torch.empty(0)] * len(names)
    width_of_row = np.array([widths[slot] for slot in heads.slots]).repeat(heads.bounds[1:] - heads.bounds[:-1])
    for numbers, values in _pooled_values(heads, outputs):
        for width in set(width_of_row[numbers].tolist()):
            alike = width_of_row[numbers] == width
            rows = torch.from_numpy(values[alike, :width]).unbind()
            for place, row in zip(plan.order[numbers[alike]].tolist(), rows, strict=True):
                logits[place] = row
    by_token = [replace(out, values=out.values.to("cpu", torch.float32, copy=True)) for out in outputs if out.per_token]
    for run in by_run(by_token, heads, widths):
        tokens, start = run.output.values.numpy()[:, : run.width], run.first
        for number in range(*run.rows):  # slicing arrays is several times faster than slicing tensors
            end = start + int(plan.lengths[number])
            logits[plan.order[number]], start = torch.from_numpy(tokens[start:end]), end
    return logits


@torch.no_grad()
def pooled_logits(host: Host, batch: Batch, names: Sequence[str | None]) -> list[tuple[Array, Array]]:
    """(rows of the batch, their logits [rows, columns] in fp32) for each group of heads; all adapters must be pooled.
    Columns beyond the labels of a row's own adapter mean nothing.
    """
    plan, heads, _, outputs = _outputs(host, batch, names, None, None)
    return [(plan.order[numbers], values) for numbers, values in _pooled_values(heads, outputs)]


def _pooled_values(heads: HeadPlan[Array], outputs: Sequence[Output]) -> Iterator[tuple[Array, Array]]:
    """(numbers of rows in the order they run, a copy of their outputs on the CPU) for each group of heads on rows."""
    for out in outputs:
        if not out.per_token:
            numbers = rows_of(out, heads)
            yield numbers, out.values.to("cpu", torch.float32).numpy()[numbers - out.start]


def _outputs(
    host: Host, batch: Batch, names: Sequence[str | None], keys: Keys | None, packed: bool | None
) -> tuple[BatchPlan[Array], HeadPlan[Array], dict[int, int], list[Output]]:
    """A plan, the plan of its heads, slot -> the width of its head, and the outputs on the device."""
    plan, widths = plan_with_heads(host, batch, names, keys, packed)
    assert plan.heads is not None
    return plan, plan.heads, widths, _run(host, plan, "outputs", functools.partial(run_batch, host.forward))


def plan_with_heads(
    host: Host, batch: Batch, names: Sequence[str | None], keys: Keys | None, packed: bool | None = None
) -> tuple[BatchPlan[Array], dict[int, int]]:
    """The plan of a batch whose rows all have a head, and slot -> the width of its head."""
    refuse_closed(host)
    slots: dict[str | None, int] = {}
    pools: dict[int, str] = {}
    widths: dict[int, int] = {}
    for name in dict.fromkeys(names):  # many rows, few names
        if name is None:
            raise SlotError(f"row {names.index(name)} is for the bare base, which has no head")
        record = host.loaded(name)
        if record.head is None:
            raise SlotError(f"{name!r} has no head; add it with labels")
        slots[name] = slot = record.slot
        pools[slot], widths[slot] = record.pool, record.width
    of_row = np.fromiter(map(slots.__getitem__, names), dtype=np.int64, count=len(names))
    return plan_batch(host.forward, batch, of_row, pools, keys, packed), widths


def slots_of(host: Host, names: Sequence[str | None]) -> Array:
    """The slot of every row; None is the bare base."""
    slots = {name: host.slot(name) for name in dict.fromkeys(names)}
    return np.fromiter(map(slots.__getitem__, names), dtype=np.int64, count=len(names))


def refuse_closed(host: Host) -> None:
    """Raise if the host is closed."""
    if host.forward.wiring.removed:
        raise InlayError("this host is closed")


def _run(host: Host, plan: BatchPlan[Array], work: str, run: Callable[[Any], Any]) -> Any:
    records = not torch.is_grad_enabled() and not host.forward.wiring.checkpointing
    return host.run_recorded(plan, plan.shape(work) if records else None, run)
