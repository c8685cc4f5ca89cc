"""DoRA (Liu et al. 2024): LoRA's direction, and a length for every output.

    (1 + g) (W x + s B A x) + b,   1 + g = (|W| + m) / |W + s B A|,   lengths |.| by output

m is the difference from peft's magnitude and starts at zero. The length below has no gradient (section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.bank.delta import Param, Part, Signal, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.methods.lora import Lora, LowRank


@dataclass(frozen=True)
class Decomposed(LowRank):
    """A low-rank change, and a gain that makes up for its length."""

    @property
    def wants(self) -> frozenset[str]:
        return frozenset({"weight"})

    def params(self, site: Site) -> dict[str, Param]:
        return super().params(site) | {"m": Param((site.d_out,))}

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        return torch.zeros(shape) if name == "m" else super().initial(name, shape, random)

    def derived(self, p: Tensors, base: Leaf) -> Tensors:
        w, up, down = base.weight.float(), p["up"].detach(), (p["down"] * p["scale"].unsqueeze(2)).detach()
        squares = w.square().sum(0)  # |W + down up|^2, never all of W for every adapter
        changed = squares + 2 * ((w.T @ down) * up.mT).sum(2) + ((down.mT @ down) @ up * up).sum(1)
        return {"gain": (squares.sqrt() + p["m"]) / changed.sqrt() - 1}

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        assert at.base is not None
        change = super().difference(route, p, at)
        y = at.y if at.base.bias is None else at.y - at.base.bias
        return change + route.vector(p["gain"], y) * (y + change)

    def merged(self, p: Tensors, base: Leaf) -> Tensors:
        change = super().merged(p, base)["weight"]
        return {"weight": change + p["gain"][0] * (base.weight + change)}


@dataclass(frozen=True, kw_only=True)
class Dora(Lora):
    """LoRA's options."""

    def parts(self, sites: Sites) -> list[Part]:
        return [Part(p.site, Decomposed(p.delta.rank, p.delta.scale), p.rows) for p in super().parts(sites)]
