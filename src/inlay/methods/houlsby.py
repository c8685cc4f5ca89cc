"""Bottleneck adapters (Houlsby et al. 2019), with sharing as in Mohebbi & Rajaei.

    y + W2 act(W1 y + b1) + b2     at the output of attention and of the feed-forward,
                                   after dropout and before the residual

W is drawn from a normal distribution with standard deviation `init`, truncated at two of them, so a new adapter is
nearly, but not exactly, the identity. The norms of the adapted layers train too, unless adapters are shared.
`parallel=true` reads the sublayer's input instead of its output; `depth` adds hidden layers [size, size]; `inner_norm`
normalises the adapter's input (all: section 3.6).

`normed=true` is the variant of Pfeiffer et al. (2021), who use it after the feed-forward only (`where=ffn`) and do not
train the norms. The adapter reads LN(s): s is the sum of sublayer and residual, LN the layer's own norm.

    LN(s + W2 act(W1 LN(s) + b1) + b2)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.delta import Delta, DeltaStage, Param, Part, Signal, SlotMethod, Tensors, bucket
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.errors import SpecError, suggest
from inlay.kernels.activations import ACTIVATIONS
from inlay.methods.norms import layer_norms
from inlay.registry import methods

_NOT_ZERO_AT_ZERO = ("sigmoid", "softplus", "exp", "softmax", "logsigmoid", "hardsigmoid")


@dataclass(frozen=True)
class Bottleneck(Delta):
    """Down, activation, up."""

    stage: ClassVar[DeltaStage] = "sublayer"

    size: int
    activation: str
    depth: int
    inner_norm: bool
    parallel: bool
    init: float

    @property
    def wants(self) -> frozenset[str]:
        """A parallel adapter reads what its sublayer reads."""
        return frozenset({"sublayer_input"} if self.parallel else ())

    def params(self, site: Site) -> dict[str, Param]:
        """down [d, m], up [m, d], their biases, and one [m, m] for each further hidden layer."""
        d, m = site.d_out, self.size
        params = {"down": Param((d, m)), "down_bias": Param((m,)), "up": Param((m, d)), "up_bias": Param((d,))}
        for layer in range(1, self.depth):
            params |= {f"hidden{layer}": Param((m, m)), f"hidden{layer}_bias": Param((m,))}
        if self.inner_norm:
            params |= {"gamma": Param((d,)), "beta": Param((d,))}
        return params

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Matrices are small and random, vectors zero (gamma is a difference from one)."""
        if len(shape) == 1 or self.init == 0:
            return torch.zeros(shape, dtype=torch.float32)
        cut = 2 * self.init
        values = torch.empty(shape, dtype=torch.float32)
        return torch.nn.init.trunc_normal_(values, 0.0, self.init, -cut, cut, generator=random)

    def bucketed(self) -> Bottleneck:
        """The initial scale does not separate groups."""
        return replace(self, size=bucket(self.size), init=0.0)

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """linear, act, linear."""
        act = ACTIVATIONS[self.activation]
        h = at.x if self.stage == "input" else at.y
        if self.parallel:
            assert at.sublayer_input is not None
            h = at.sublayer_input
        if self.inner_norm:
            n = F.layer_norm(h, h.shape[-1:])
            h = n + n * route.vector(p["gamma"], h) + route.vector(p["beta"], h)
        down, up = (p["down"], p["down_bias"]), (p["up"], p["up_bias"])
        if self.depth == 1:
            return route.bottleneck(h, down, up, act, self.activation)
        h = act(route.linear(h, *down))
        for layer in range(1, self.depth):
            h = act(route.linear(h, p[f"hidden{layer}"], p[f"hidden{layer}_bias"]))
        return route.linear(h, *up)

    def merged(self, p: Tensors, base: Leaf) -> str:
        """Why not: the base has no place for it."""
        return "has an activation between two matrices, which the base's weights cannot express"


@dataclass(frozen=True)
class NormedBottleneck(Bottleneck):
    """The same at a norm: it reads the norm's output and changes its input."""

    stage = "input"


@methods.register("houlsby")
@dataclass(frozen=True, kw_only=True)
class Houlsby(SlotMethod):
    """A bottleneck after attention and after the feed-forward of each layer."""

    identity_at_start = False

    size: int = option(64, "width of the bottleneck", at_least=1)
    activation: str = option("gelu", "one of " + ", ".join(ACTIVATIONS))
    init: float = option(0.01, "standard deviation of the initial weights", at_least=0)
    where: Literal["both", "attn", "ffn"] = option("both", "after which sublayer")
    share: str = option("none", "none, sublayers (one adapter per layer), or n (one for n consecutive layers)")
    norms: bool | None = option(None, "train the norms of the adapted layers; auto: unless shared or normed")
    parallel: bool = option(False, "read the sublayer's input instead of its output")
    depth: int = option(1, "hidden layers in the adapter", at_least=1)
    inner_norm: bool = option(False, "normalise the adapter's input")
    normed: bool = option(False, "read the layer's own norm of sublayer and residual, in post-norm models (Pfeiffer)")

    def check(self) -> None:
        """Refuse activations that do not keep padded units at zero, and options that exclude each other."""
        if self.activation in _NOT_ZERO_AT_ZERO:
            raise SpecError(
                f"houlsby: activation={self.activation} is not valid: f(0) must be 0, or padded units would not "
                f"stay silent. Valid: {', '.join(ACTIVATIONS)}"
            )
        if self.activation not in ACTIVATIONS:
            hint = suggest(self.activation, ACTIVATIONS)
            raise SpecError(f"houlsby: activation={self.activation} is not valid. {hint}")
        if self.share not in ("none", "sublayers") and not re.fullmatch(r"[1-9]\d*", self.share):
            raise SpecError(f"houlsby: share={self.share} is not valid: expected none, sublayers, or a number from 1")
        for key in ("parallel", "norms"):
            if self.normed and getattr(self, key):
                raise SpecError(f"houlsby: {key}=true is not valid with normed=true: set one of them")

    def parts(self, sites: Sites) -> list[Part]:
        """Bottlenecks at the chosen outputs, and the norms of their layers."""
        layers = sites.choose_layers(self.layers)
        if self.normed and sites.arch.norm_place != "after":
            raise SpecError(f"houlsby: normed=true needs norms that follow sublayers, not {sites.arch.model_type}'s")
        kind = NormedBottleneck if self.normed else Bottleneck
        delta = kind(self.size, self.activation, self.depth, self.inner_norm, self.parallel, self.init)
        places = ("attn", "ffn") if self.where == "both" else (self.where,)
        kinds = tuple(f"{place}.{'norm' if self.normed else 'out'}" for place in places)
        parts = [Part(s, delta, self._row(s, layers)) for s in sites.select(kinds, layers)]
        with_norms = self.share == "none" and not self.normed if self.norms is None else self.norms
        return parts + (layer_norms(sites, layers) if with_norms else [])

    def _row(self, site: Site, layers: tuple[int, ...]) -> str:
        if self.share == "none":
            return site.name
        assert site.layer is not None
        if self.share == "sublayers":
            return f"layers.{site.layer}"
        count, index = int(self.share), layers.index(site.layer)
        group = layers[index - index % count : index - index % count + count]
        return f"layers.{group[0]}-{group[-1]}"
