"""The outputs of the last layer's two norms, before and after the feed-forward, for rows of any adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from inlay.base.sites import Site
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.watch import Watcher, watch

_NORMS = ("attn.norm", "ffn.norm")


def norm_outputs(host: Host, batch: Batch, names: Sequence[str | None]) -> list[tuple[Tensor, Tensor]]:
    """([tokens, d], [tokens, d]) for every row: the outputs of the last layer's first norm and of its second.

    Args:
        names: the adapter of every row, as for `Host.hidden`.
    """
    last = host.base.sites.layers - 1
    noted = watch(host, batch, names, lambda tokens: _Norms(last))
    return [(before.float().cpu(), after.float().cpu()) for before, after in noted]


@final
class _Norms(Watcher):
    def __init__(self, layer: int):
        self.layer_number = layer
        self.outputs: dict[str, Tensor] = {}

    def leaf(self, site: Site, out: Tensor) -> None:
        if site.layer == self.layer_number and site.kind in _NORMS:
            self.outputs[site.kind] = out.flatten(0, -2)  # if a layer is called several times, the last call counts

    def noted(self) -> Tensor:
        return torch.stack([self.outputs[kind] for kind in _NORMS])
