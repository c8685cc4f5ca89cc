"""One batch of work: forward passes and heads. Planned on the host, run on tensors alone.

All numbers are in one set of tables, so work of the same shape can be recorded once and replayed with other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.bank.forward import Forward, Hidden, Plan
from inlay.bank.noise import Keys
from inlay.bank.tables import Tables
from inlay.data.batch import Batch
from inlay.engine.answer import Heads, Output, answer, plan_heads


@dataclass(frozen=True)
class Work:
    """What is to be done with a batch."""

    plans: Sequence[Plan]
    heads: Heads | None
    """None to stop at the hidden states."""
    tables: Tables

    @functools.cached_property
    def slots(self) -> list[int]:
        """The slot of every row, in the order they are run."""
        return [slot for plan in self.plans for slot in plan.slots]

    @functools.cached_property
    def lengths(self) -> list[int]:
        """The length of every row, in the order they are run."""
        return [n for plan in self.plans for n in plan.lengths]

    @functools.cached_property
    def order(self) -> list[int]:
        """The place of every row in the batch."""
        return [row for plan in self.plans for row in plan.rows]

    def shape(self, forward: Forward) -> tuple[Any, ...] | None:
        """What a recording depends on; None for work that cannot be recorded."""
        if len(self.plans) > 1 or not forward.fixed(self.plans[0]) or forward.wiring.checkpointing:
            return None
        (plan,), heads = self.plans, self.heads
        kinds = None if heads is None else (tuple(heads.kinds), "tokens" in heads.pools.values())
        return (
            forward.bank.version,
            forward.compiled,
            plan.keys is None,
            plan.layout.longest,
            (plan.slots[0], len(plan.slots)) if plan.alone else None,
            kinds,
            self.tables.shape,
        )


def plan_work(
    forward: Forward,
    batch: Batch,
    slots: Sequence[int],
    pools: Mapping[int, str] | None,
    keys: Keys | None = None,
    packed: bool | None = None,
    more: Mapping[str, Tensor] | None = None,
) -> Work:
    """
    Args:
        pools: how each slot pools its rows; None to stop at the hidden states.
        more: other tables, to travel with the work's own.
    """
    plans = forward.plan(batch, slots, keys, packed)
    parts = {f"{i} {name}": table for i, plan in enumerate(plans) for name, table in plan.tables.items()}
    heads = None
    if pools is not None:
        own, lengths = ([value for plan in plans for value in values(plan)] for values in (_slots, _lengths))
        tokens = plans[0].layout.tokens if len(plans) == 1 and plans[0].layout.rows is not None else sum(lengths)
        heads = plan_heads(forward, own, lengths, tokens, pools, keys)
        parts |= {f"heads {name}": table for name, table in heads.tables.items()}
    return Work(plans, heads, Tables(parts | {f"more {name}": table for name, table in (more or {}).items()}))


def states_of(forward: Forward, work: Work, tables: Mapping[str, Tensor]) -> Tensor:
    """[tokens, d] the last hidden states, in the order rows are run; there may be padding at the end."""
    found = [forward.run(plan, part(tables, str(i))) for i, plan in enumerate(work.plans)]
    if len(found) == 1:
        return found[0]
    return torch.cat([states[: sum(plan.lengths)] for plan, states in zip(work.plans, found, strict=True)])


def outputs_of(forward: Forward, work: Work, tables: Mapping[str, Tensor]) -> list[Output]:
    """What the heads say."""
    assert work.heads is not None
    return answer(forward, work.heads, states_of(forward, work, tables), part(tables, "heads"))


def hidden_of(work: Work, states: Tensor) -> Hidden:
    """States with the rows they belong to."""
    return Hidden(states, tuple(work.lengths), tuple(work.slots), tuple(work.order))


def part(tables: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tables of one part of the work."""
    prefix = f"{name} "
    return {key.removeprefix(prefix): table for key, table in tables.items() if key.startswith(prefix)}


def _slots(plan: Plan) -> Sequence[int]:
    return plan.slots


def _lengths(plan: Plan) -> Sequence[int]:
    return plan.lengths
