"""Feature extraction: a learned mix of all hidden states (Peters et al. 2019; the fourth paper's baseline).

    h_L + sum_l delta_l h_l,   delta starts at zero

h_0 is the embedding's output, h_L the last hidden state. Nothing inside the model changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.errors import SpecError
from inlay.registry import methods


@dataclass(frozen=True)
class LayerMix(Delta):
    """A weighted sum of hidden states."""

    states: tuple[int, ...]

    @property
    def wants(self) -> frozenset[str]:
        """All hidden states."""
        return frozenset({"hidden"})

    def params(self, site: Site) -> dict[str, Param]:
        """mix [states]."""
        return {"mix": Param((len(self.states),))}

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """sum_l delta_l h_l."""
        weights = route.vector(p["mix"], at.y)
        states = torch.stack([at.hidden[i] for i in self.states], dim=-1)
        return (states * weights.unsqueeze(-2)).sum(-1)

    def merged(self, p: Tensors, base: Leaf) -> str:
        """Why not: the base has no place for it."""
        return "mixes the states of all layers, which the base's own forward pass does not"


@methods.register("frozen")
@dataclass(frozen=True, kw_only=True)
class Frozen(SlotMethod):
    """The unchanged base; only a mix of its layers' outputs is learned."""

    def parts(self, sites: Sites) -> list[Part]:
        """One weight per hidden state; `layers=` leaves out the others and the embedding."""
        states = tuple(range(sites.depth + 1))
        if len(chosen := sites.choose_layers(self.layers)) < sites.layers:
            if sites.depth != sites.layers:
                raise SpecError(f"frozen: {sites.arch.model_type}'s layers are one layer; layers= cannot choose")
            states = tuple(layer + 1 for layer in chosen)
        return [Part(sites.output, LayerMix(states), "output")]
