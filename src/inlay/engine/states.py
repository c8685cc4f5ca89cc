"""The hidden states of every layer, for any mix of adapters: what analyses look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inlay.bank.forward import in_order
from inlay.bank.tables import Tables
from inlay.data.batch import Batch

if TYPE_CHECKING:
    from inlay.engine.host import Host


@torch.no_grad()
def layer_states(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor]:
    """[depth + 1, tokens, d] of every row, on the base's device: the embedding's output, then every layer's.

    The last one is the model's own last hidden state: after the final norm, where there is one.

    Args:
        names: the adapter of every row, None for the bare base.
    """
    with host.lock:
        return _layer_states(host, batch, names)


def _layer_states(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor]:
    host._refuse_closed()
    forward, base = host.forward, host.base
    plans = forward.plan(batch, [host.slot(name) for name in names], None)
    rows: list[Tensor] = []
    for plan in plans:
        tables = Tables(plan.tables).to(base.device)
        state = forward.state(plan, tables)
        state.wants |= {"hidden"}
        state.compiled = False  # a compiled layer keeps nothing
        last = forward.call(state, plan.layout.inputs(base, tables))
        found = torch.stack([*(h.flatten(0, -2) for h in state.hidden[:-1]), last])
        found = found[:, tables["valid"]] if "valid" in tables else found
        rows += torch.split(found[:, : sum(plan.lengths)], list(plan.lengths), dim=1)
    return in_order(rows, [row for plan in plans for row in plan.rows])
