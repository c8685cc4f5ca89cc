"""Train the layer norms alone (Houlsby et al. 2019, section 3.4).

    LN(x) + n * dgamma + dbeta,   n the normalised value

Written as a difference, so zero is bit-equal to the base. RMS norms have no shift; neither have layer norms
without a bias (ModernBERT).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.registry import methods


@dataclass(frozen=True)
class NormShift(Delta):
    """Change a norm's scale and shift."""

    shift: bool

    @classmethod
    def at(cls, site: Site) -> Part:
        """This delta at a norm, with a row of its own."""
        return Part(site, cls(shift=site.bias), site.name)

    def params(self, site: Site) -> dict[str, Param]:
        """gamma [d] and, if the norm has one, beta [d]."""
        names = ("gamma", "beta") if self.shift else ("gamma",)
        return {name: Param((site.d_out,)) for name in names}

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """n * dgamma + dbeta."""
        scaled = at.normalised() * route.vector(p["gamma"], at.x)
        return scaled + route.vector(p["beta"], at.x) if self.shift else scaled

    def merged(self, p: Tensors, base: Leaf) -> Tensors:
        """gamma + dgamma, beta + dbeta."""
        return {"weight": p["gamma"][0]} | ({"bias": p["beta"][0]} if self.shift else {})


def layer_norms(sites: Sites, layers: tuple[int, ...]) -> list[Part]:
    """The norms of these layers."""
    norms = [sites.at(kind, layer) for layer in layers for kind in ("attn.norm", "ffn.norm")]
    return [NormShift.at(site) for site in norms if site is not None]


@methods.register("norms")
@dataclass(frozen=True, kw_only=True)
class Norms(SlotMethod):
    """The norms of the chosen layers; with all layers, also the embedding's norm and the final one."""

    def parts(self, sites: Sites) -> list[Part]:
        """One delta per norm."""
        layers = sites.choose_layers(self.layers)
        outside = [sites.at(kind) for kind in ("embed.norm", "final.norm")] if len(layers) == sites.layers else []
        return [NormShift.at(site) for site in outside if site is not None] + layer_norms(sites, layers)
