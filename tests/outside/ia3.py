"""IA3 (Liu et al. 2022): scale keys and values, and what goes into the feed-forward's second projection.

    y + s * y at attn.k and attn.v,    y + W (s * x) at ffn.out

s is the difference from peft's scale, which starts at one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option


@dataclass(frozen=True)
class Scaled(Delta):
    """A vector times what comes out, or what goes in."""

    inner: bool

    @property
    def wants(self) -> frozenset[str]:
        return frozenset({"base"} if self.inner else ())

    def params(self, site: Site) -> dict[str, Param]:
        return {"scale": Param((site.d_in if self.inner else site.d_out,))}

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        scaled = (at.x if self.inner else at.y) * route.vector(p["scale"], at.y)
        return at.base.product(scaled) if self.inner and at.base is not None else scaled

    def merged(self, p: Tensors, base: Leaf) -> Tensors:
        scale = p["scale"][0]
        if self.inner:
            return {"weight": scale.unsqueeze(1) * base.weight}
        return {"weight": base.weight * scale} | ({} if base.bias is None else {"bias": base.bias * scale})


@dataclass(frozen=True, kw_only=True)
class IA3(SlotMethod):
    """Scales, and nothing else."""

    sites: str = option("attn.k+attn.v", "which projections, joined by +")
    inner: str = option("ffn.out", "those whose input is scaled, joined by +")

    def parts(self, sites: Sites) -> list[Part]:
        outer = [Part(site, Scaled(False), site.name) for site in sites.projections(self.sites, self.layers)]
        return outer + [Part(site, Scaled(True), site.name) for site in sites.projections(self.inner, self.layers)]
