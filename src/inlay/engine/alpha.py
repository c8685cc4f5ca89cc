"""How much each token is shifted: AdapterBias's alpha, layer by layer (Fu et al. 2022, section 4.7).

The forward pass is the usual one. A pass of this kind hands out the same deltas, each with someone beside it who writes
down the weights that the method itself computes; nothing of the method is written twice. Tokens of other adapters have
weight 0 in every group's results, so the groups at a site can simply be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inlay.bank.bank import Bank
from inlay.bank.delta import Delta, Param, Signal, Tensors
from inlay.bank.forward import Plan, in_order
from inlay.bank.passes import Action, BankPass
from inlay.bank.route import Route
from inlay.bank.tables import Tables
from inlay.base.sites import Site
from inlay.data.batch import Batch
from inlay.methods.adapterbias import TokenShift

if TYPE_CHECKING:
    from inlay.engine.host import Host


@torch.no_grad()
def alphas(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor | None]:
    """[layers, tokens] of every row whose adapter weighs its shift by token, on the CPU; None for the others.

    A layer that the adapter leaves alone has zeros. Only rows that have weights are run.

    Args:
        names: the adapter of every row, as for `Host.hidden`.
    """
    with host.lock:
        return _alphas(host, batch, names)


def _alphas(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor | None]:
    host._refuse_closed()
    slots = [host.slot(name) for name in names]
    found: list[Tensor | None] = [None] * len(slots)
    mine = [row for row, slot in enumerate(slots) if has_alpha(host, slot)]
    if not mine:
        return found
    forward = host.forward
    plans = forward.plan(batch.take(mine), [slots[row] for row in mine], None)
    rows = [row for plan in plans for row in _weights(host, plan)]
    for row, weights in zip(mine, in_order(rows, [row for plan in plans for row in plan.rows]), strict=True):
        found[row] = weights
    return found


def has_alpha(host: Host, slot: int) -> bool:
    """Whether the adapter in a slot weighs its shift by token."""
    known = host.forward.bank.slots.get(slot)
    return known is not None and any(isinstance(p.delta, TokenShift) and p.delta.alpha for p in known.parts)


def _weights(host: Host, plan: Plan) -> list[Tensor]:
    """[layers, tokens] of every row of a plan, in the order they are run."""
    forward, base = host.forward, host.base
    tables = Tables(plan.tables).to(base.device)
    state = _Heard(forward.bank, plan, tables, base.sites.depth)
    forward.call(state, plan.layout.inputs(base, tables))
    heard = state.heard if "valid" not in tables else state.heard[:, tables["valid"]]
    return list(torch.split(heard[:, : sum(plan.lengths)].cpu(), list(plan.lengths), dim=1))


class _Heard(BankPass):
    """A pass that writes down every token's weight."""

    def __init__(self, bank: Bank, plan: Plan, tables: Mapping[str, Tensor], depth: int):
        super().__init__(bank, plan.segments, None, tables, plan.alone)
        self.heard = torch.zeros(depth, plan.layout.tokens, dtype=torch.float32, device=bank.device)

    def at(self, site: Site) -> Sequence[Action]:
        """The same deltas, overheard."""
        return [(self._overheard(delta), tensors, route) for delta, tensors, route in super().at(site)]

    def _overheard(self, delta: Delta) -> Delta:
        return _Overheard(delta, self._note) if isinstance(delta, TokenShift) and delta.alpha else delta

    def _note(self, route: Route, weights: Tensor) -> None:
        start, end = route.span or (0, self.heard.shape[1])
        self.heard[self.depth - 1, start:end] += weights[:, 0]


@dataclass(frozen=True)
class _Overheard(Delta):
    """A token shift, and someone who is told its weights."""

    stage = TokenShift.stage

    shift: TokenShift
    note: Callable[[Route, Tensor], None]

    def params(self, site: Site) -> dict[str, Param]:
        """The shift's."""
        return self.shift.params(site)

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """The shift's."""
        self.note(route, self.shift.weights(route, p, at))
        return self.shift.difference(route, p, at)
