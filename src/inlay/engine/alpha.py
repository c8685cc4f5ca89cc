"""How much each token is shifted: AdapterBias's alpha, layer by layer (Fu et al. 2022, section 4.7).

The forward pass is the usual one, and an observer notes the weights that the method computes. Tokens of other adapters
have weight 0 in every group's results, so the groups at a site can simply be added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from inlay.bank.delta import Delta, Signal, Tensors
from inlay.bank.route import Route
from inlay.data.batch import Batch
from inlay.engine.watch import Watcher, watch
from inlay.methods.adapterbias import TokenShift

if TYPE_CHECKING:
    from inlay.engine.host import Host


def alphas(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor | None]:
    """[layers, tokens] for every row whose adapter weighs its shift by token, on the CPU; None for other rows.

    A layer that the adapter does not change has zeros. Only rows that have weights are run.

    Args:
        names: the adapter of every row, as for `Host.hidden`.
    """
    with host.lock:
        chosen = [row for row, name in enumerate(names) if has_alpha(host, host.slot(name))]
        weights_of_row: list[Tensor | None] = [None] * len(names)
        if not chosen:
            return weights_of_row
        depth, device = host.base.sites.depth, host.base.device
        part = batch.take(np.array(chosen))
        noted = watch(host, part, [names[row] for row in chosen], lambda tokens: _Alpha(depth, tokens, device))
    for row, weights in zip(chosen, noted, strict=True):
        weights_of_row[row] = weights.cpu()
    return weights_of_row


def has_alpha(host: Host, slot: int) -> bool:
    """Whether the adapter in a slot weighs its shift by token."""
    record = host.forward.bank.slots.get(slot)
    return record is not None and any(isinstance(p.delta, TokenShift) and p.delta.alpha for p in record.parts)


@final
class _Alpha(Watcher):
    """Adds up every token's weights in every layer."""

    def __init__(self, depth: int, tokens: int, device: torch.device):
        self.alpha = torch.zeros(depth, tokens, dtype=torch.float32, device=device)

    def delta(self, depth: int, delta: Delta, route: Route, tensors: Tensors, at: Signal) -> None:
        if isinstance(delta, TokenShift) and delta.alpha:
            start, end = route.span or (0, self.alpha.shape[1])
            self.alpha[depth, start:end] += delta.weights(route, tensors, at)[:, 0]

    def noted(self) -> Tensor:
        return self.alpha
