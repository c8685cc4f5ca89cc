"""Routes in tensors, for CUDA with Triton.

Nothing here depends on the numbers of a batch, only on its size: one compiled layer or captured graph serves all
batches of a size, whoever is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from inlay.bank.route import Act, Layer, Route
from inlay.kernels.routed_bottleneck import FUSED, bottleneck
from inlay.kernels.routed_linear import linear, vector


def block_for(tokens: int) -> int:
    """Tokens of a tile: few where there are few, so that all of the device has work."""
    return 16 if tokens <= 2048 else 32 if tokens <= 8192 else 64


@dataclass(frozen=True)
class Spread:
    """Segments as tensors on a device: slots are the places 0, 1, 2 ... of a batch."""

    bounds: Tensor
    """[places + 1] place s owns the tokens from bounds[s] up to bounds[s + 1]."""
    tiles: Tensor
    """[n, 3] (first token, how many, place): at most `block` tokens of one place; those of 0 tokens are padding."""
    place: Tensor
    """[tokens] the place of every token; -1 for padding."""
    block: int

    @classmethod
    def of(cls, tables: Mapping[str, Tensor]) -> Spread:
        """From what `Segments.tables` has made."""
        return cls(tables["bounds"], tables["tiles"], tables["place"], block_for(tables["place"].shape[0]))


class KernelRoute(Route):
    """The entry of every place. One kernel does all tokens."""

    def __init__(self, entry: Tensor, spread: Spread):
        super().__init__([], 0)
        self.span = None
        self.entry = entry
        self.spread = spread

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One kernel."""
        s = self.spread
        return linear(x, weight, bias, self.entry, s.tiles, s.bounds, s.block)

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """A gather; its gradient is a sum over each place."""
        return vector(p, self.entry, self.spread.bounds, self.spread.place, like.dtype)

    def bottleneck(self, x: Tensor, down: Layer, up: Layer, act: Act, name: str, scale: Tensor | None = None) -> Tensor:
        """One kernel, if it knows the activation."""
        s = self.spread
        if name not in FUSED:
            return super().bottleneck(x, down, up, act, name, scale)
        return bottleneck(x, *down, *up, scale, name, self.entry, s.tiles, s.bounds, s.block)
