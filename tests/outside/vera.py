"""VeRA (Kopiczko et al. 2024): two random matrices for all layers and all adapters, and two vectors that train.

    y + b * ((d * (x A)) B),   b starts at zero, d at `d`

A and B follow from `key` alone, so they are shared: one copy in memory, none in an adapter's file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.sites import Site, Sites
from inlay.config import option


@dataclass(frozen=True)
class Random(Delta):
    """Vectors around frozen matrices."""

    rank: int
    key: int
    d: float

    def params(self, site: Site) -> dict[str, Param]:
        a, b = Param((site.d_in, self.rank), "shared"), Param((self.rank, site.d_out), "shared")
        return {"A": a, "B": b, "d": Param((self.rank,)), "b": Param((site.d_out,))}

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        if name in ("d", "b"):
            return torch.full(shape, self.d if name == "d" else 0.0)
        bound = (6 / shape[0]) ** 0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=random.manual_seed(self.key + (name == "B")))

    def bucketed(self) -> Random:
        return replace(self, d=0.0)  # not the rank: A and B follow from it

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        inner = at.x @ p["A"][0].to(at.x.dtype) * route.vector(p["d"], at.x)
        return inner @ p["B"][0].to(at.x.dtype) * route.vector(p["b"], at.x)


@dataclass(frozen=True, kw_only=True)
class Vera(SlotMethod):
    """Vectors for chosen projections."""

    rank: int = option(256, "inner width", at_least=1)
    key: int = option(0, "seed of the random matrices", at_least=0)
    d: float = option(0.1, "where the inner vector starts")
    sites: str = option("attn.q+attn.v", "which projections, joined by +")

    def parts(self, sites: Sites) -> list[Part]:
        delta = Random(self.rank, self.key, self.d)
        found = sites.projections(self.sites, self.layers)
        return [Part(s, delta, dict.fromkeys("db", s.name) | dict.fromkeys("AB", f"{s.d_in}x{s.d_out}")) for s in found]
