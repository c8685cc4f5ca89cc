"""What the two norms of the last layer give, for rows of any adapters: before and after the feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inlay.bank.forward import Plan, in_order
from inlay.bank.tables import Tables
from inlay.data.batch import Batch
from inlay.engine.host import Host


@torch.no_grad()
def norm_outputs(host: Host, batch: Batch, names: Sequence[str | None]) -> list[tuple[Tensor, Tensor]]:
    """([tokens, d], [tokens, d]) of every row: the outputs of the last layer's first norm and of its second.

    Args:
        names: the adapter of every row, as for `Host.hidden`.
    """
    plans = host.forward.plan(batch, [host.slot(name) for name in names], None)
    rows = [row for plan in plans for row in _heard(host, plan)]
    order = [row for plan in plans for row in plan.rows]
    before, after = (in_order([row[i] for row in rows], order) for i in (0, 1))
    return list(zip(before, after, strict=True))


def _heard(host: Host, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """What the norms give for every row of a plan, in the order they are run."""
    forward, sites = host.forward, host.base.sites
    tables = Tables(plan.tables).to(host.base.device)
    state = forward.state(plan, tables)
    state.compiled = False
    heard: dict[str, Tensor] = {}
    hooks = []
    for kind in ("attn.norm", "ffn.norm"):
        site = sites.at(kind, sites.layers - 1)
        assert site is not None

        def note(module: Any, inputs: Any, out: Tensor, kind: str = kind) -> None:
            heard[kind] = out.flatten(0, -2)  # the last call counts, where one layer is called often

        hooks.append(host.base.model.get_submodule(site.path).register_forward_hook(note))
    try:
        forward.call(state, plan.layout.inputs(host.base, tables))
    finally:
        for hook in hooks:
            hook.remove()
    parts = []
    for out in (heard["attn.norm"], heard["ffn.norm"]):
        flat = out if "valid" not in tables else out[tables["valid"]]
        parts.append(torch.split(flat[: sum(plan.lengths)].float().cpu(), list(plan.lengths)))
    return list(zip(*parts, strict=True))
