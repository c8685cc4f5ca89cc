"""BitFit (Ben Zaken et al. 2021): train every bias of the encoder layers.

y + db at each projection, before its dropout, and LN(x) + dbeta at each norm
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.errors import SpecError
from inlay.registry import methods


@dataclass(frozen=True)
class BiasShift(Delta):
    """Change a bias."""

    def params(self, site: Site) -> dict[str, Param]:
        """bias [d_out]."""
        return {"bias": Param((site.d_out,))}

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """The same shift for every token of an entry."""
        return route.vector(p["bias"], at.y).expand_as(at.y)

    def merged(self, p: Tensors, base: Leaf) -> Tensors:
        """b + db."""
        return {"bias": p["bias"][0]}


@methods.register("bitfit")
@dataclass(frozen=True, kw_only=True)
class BitFit(SlotMethod):
    """Every bias of the encoder layers; biases outside the layers stay frozen."""

    def parts(self, sites: Sites) -> list[Part]:
        """One delta per bias."""
        layers = sites.choose_layers(self.layers)
        found = [s for s in sites if s.layer in layers and s.bias]
        if not found:
            raise SpecError(f"bitfit has nothing to train: {sites.arch.model_type} has no biases in these layers")
        return [Part(site, BiasShift(), site.name) for site in found]
