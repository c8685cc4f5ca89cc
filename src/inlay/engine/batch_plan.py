"""The plan of one batch, its forward passes and its heads; and how it is run.

Work of the same shape can be recorded once and replayed with other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from inlay.bank.forward import Forward
from inlay.bank.noise import Keys
from inlay.bank.plan import PassPlan
from inlay.bank.records import A, Record, shape_of
from inlay.data.batch import Array, Batch
from inlay.engine.graphs import GroupState, Shape
from inlay.engine.outputs import HeadPlan, Output, apply_heads, plan_heads


@dataclass(frozen=True, eq=False)
class BatchPlan(Record, Generic[A]):
    """What is to be done with a batch."""

    passes: tuple[PassPlan[A], ...]
    heads: HeadPlan[A] | None
    """None to stop at the hidden states."""
    compiled: bool

    @functools.cached_property
    def slots(self) -> Array:
        """The slot of every row, in the order they run."""
        return np.concatenate([one.slots for one in self.passes])

    @functools.cached_property
    def lengths(self) -> Array:
        """The length of every row, in the order they run."""
        return np.concatenate([one.lengths for one in self.passes])

    @functools.cached_property
    def order(self) -> Array:
        """Which row of the batch each of them is."""
        return np.concatenate([one.rows for one in self.passes])

    @property
    def is_fixed(self) -> bool:
        """Whether it can be recorded."""
        return len(self.passes) == 1 and self.passes[0].is_fixed

    @property
    def groups(self) -> frozenset[GroupState]:
        """The groups that take part."""
        runs = [one.runs for one in self.passes]
        if self.heads is not None:
            runs += [place.runs for place in (self.heads.rows, self.heads.tokens) if place is not None]
        return frozenset(state for one in runs for state in one.groups)

    def shape(self, what: str) -> Shape | None:
        """What a recording of some work with it depends on; None if it cannot be recorded."""
        return Shape((what, shape_of(self)), self.groups) if self.is_fixed else None


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
        slots: of every row.
        pools: how each slot pools its rows; None to stop at the hidden states.
    """
    passes = tuple(forward.plan(batch, slots, keys, packed))
    plan = BatchPlan(passes, None, forward.compiled)
    if pools is None:
        return plan
    is_padded_at_the_end = len(passes) == 1 and passes[0].tokens.valid is None
    tokens = passes[0].tokens.size if is_padded_at_the_end else int(plan.lengths.sum())
    heads = plan_heads(forward, plan.slots, plan.lengths, tokens, pools, keys)
    return BatchPlan(passes, heads, forward.compiled)


def run_passes(forward: Forward, plan: BatchPlan[Tensor]) -> Tensor:
    """[tokens, d] the last hidden states, in the order rows run; there may be padding at the end."""
    found = [forward.run(one) for one in plan.passes]
    if len(found) == 1:
        return found[0]
    return torch.cat([states[: int(one.lengths.sum())] for one, states in zip(plan.passes, found, strict=True)])


def run_batch(forward: Forward, plan: BatchPlan[Tensor]) -> list[Output]:
    """What the heads say."""
    assert plan.heads is not None
    return apply_heads(forward, plan.heads, run_passes(forward, plan))
