"""BitFit (Ben Zaken et al. 2021): train every bias of the encoder layers, or some of them.

    y + db at each projection, before its dropout, and LN(x) + dbeta at each norm

The paper's subset is that of the queries and of "the second MLP layer", which is the feed-forward's first projection
(d to 4d; `query intermediate` in the authors' code): `sites=attn.q+ffn.in`, nearly half of all biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.errors import SpecError, suggest
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
    """Biases of the encoder layers; those outside the layers stay frozen."""

    learning_rate: ClassVar[float] = 3e-3

    sites: str = option("all", "which biases: all, or projections and norms joined by +, such as attn.q+ffn.in")

    def parts(self, sites: Sites) -> list[Part]:
        """One delta per bias."""
        layers, model = sites.choose_layers(self.layers), sites.arch.model_type
        with_bias = [s for s in sites if s.layer in layers and s.bias]
        if not with_bias:
            raise SpecError(f"bitfit has nothing to train: {model} has no biases in these layers")
        if self.sites != "all":
            chosen, trainable = sites.read_kinds(self.sites), sorted({site.kind for site in with_bias})
            for kind in (kind for kind in chosen if kind not in trainable):
                raise SpecError(f"bitfit: {model} has no bias to train at {kind!r}. {suggest(kind, trainable)}")
            with_bias = [site for site in with_bias if site.kind in chosen]
        return [Part(site, BiasShift(), site.name) for site in with_bias]
