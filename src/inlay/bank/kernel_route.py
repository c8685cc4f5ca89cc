"""Routes in tensors, for CUDA with Triton.

Nothing here depends on the numbers of a batch, only on its size: one compiled layer or recorded graph serves all
batches of a size, whatever slots are in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from inlay.bank.plan import Tiles
from inlay.bank.route import Act, Layer, Route
from inlay.kernels.routed_bottleneck import FUSED, bottleneck
from inlay.kernels.routed_linear import linear, vector


@final
@dataclass(frozen=True, eq=False)
class KernelRoute(Route):
    """The entry of every place of a batch; one kernel does all tokens."""

    entry: Tensor
    """[places]"""
    tiles: Tiles[Tensor]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One kernel."""
        t = self.tiles
        return linear(x, weight, bias, self.entry, t.tiles, t.bounds, t.block)

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """A gather; its gradient is a sum over each place."""
        return vector(p, self.entry, self.tiles.bounds, self.tiles.place, like.dtype)

    def bottleneck(self, x: Tensor, down: Layer, up: Layer, act: Act, name: str, scale: Tensor | None = None) -> Tensor:
        """One kernel, if it knows the activation."""
        t = self.tiles
        if name not in FUSED:
            return self._apart(x, down, up, act, scale)
        return bottleneck(x, *down, *up, scale, name, self.entry, t.tiles, t.bounds, t.block)
