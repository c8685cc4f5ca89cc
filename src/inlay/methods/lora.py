"""LoRA (Hu et al. 2021): a low-rank change of chosen projections.

    y + (alpha / rank) * B A x,   B starts at zero

A starts as peft's: uniform in +-1/sqrt(in) (Kaiming with a = sqrt(5)). The scale is kept per entry, so adapters
of different alpha share a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors, bucket
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.kernels.activations import ACTIVATIONS
from inlay.registry import methods


@dataclass(frozen=True)
class LowRank(Delta):
    """Two thin matrices."""

    rank: int
    scale: float

    def params(self, site: Site) -> dict[str, Param]:
        """down [d_in, rank], up [rank, d_out], and the fixed scale [1]."""
        down, up = Param((site.d_in, self.rank)), Param((self.rank, site.d_out))
        return {"down": down, "up": up, "scale": Param((1,), "constant")}

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """up is zero."""
        if name == "scale":
            return torch.full(shape, self.scale, dtype=torch.float32)
        if name == "up":
            return torch.zeros(shape, dtype=torch.float32)
        bound = shape[0] ** -0.5
        return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=random)

    def bucketed(self) -> LowRank:
        """The scale is a tensor, so it does not separate groups."""
        return replace(self, rank=bucket(self.rank), scale=1.0)

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """linear, scale, linear."""
        name = "identity"
        return route.bottleneck(at.x, (p["down"], None), (p["up"], None), ACTIVATIONS[name], name, p["scale"])

    def merged(self, p: Tensors, base: Leaf) -> Tensors:
        """W + scale * down up."""
        return {"weight": (p["down"][0].double() @ p["up"][0].double()) * p["scale"][0].double()}


@methods.register("lora")
@dataclass(frozen=True, kw_only=True)
class Lora(SlotMethod):
    """Low-rank changes to queries and values, or to any other projections."""

    rank: int = option(8, "inner width", at_least=1)
    alpha: float = option(16.0, "scale times rank", above=0)
    sites: str = option("attn.q+attn.v", "which projections, joined by +")

    def parts(self, sites: Sites) -> list[Part]:
        """One delta per chosen projection."""
        delta = LowRank(self.rank, self.alpha / self.rank)
        return [Part(site, delta, site.name) for site in sites.projections(self.sites, self.layers)]
