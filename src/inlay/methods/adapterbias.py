"""AdapterBias (Fu et al. 2022): a token-dependent shift after the feed-forward.

    y + (w . x + b) v     at the feed-forward's output; x is the 4d-wide activation, v starts at zero

The norm that follows the feed-forward trains too. `share` uses one v, one (w, b), or both for all layers;
`alpha=false` leaves (w, b) out. `l0=lambda` puts a hard-concrete gate on each element of w and adds
lambda * E[L0] to the loss; `finish` applies the gates, drops them, and keeps w sparse. The gates are those of Louizos
et al. (2018) and start at log-odds 0, where P(z > 0) is 83 %: what the paper's table B shows for most tasks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from inlay.bank import sparse
from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors, Uniform
from inlay.bank.gates import HardConcrete
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.errors import SpecError
from inlay.methods.norms import NormShift
from inlay.registry import methods


@dataclass(frozen=True)
class TokenShift(Delta):
    """alpha times v."""

    stage = "sublayer"

    alpha: bool
    gate: HardConcrete | None
    open_at_start: float
    strength: float
    """lambda; a tensor in the bank, like the other starting values, so it does not separate groups."""

    def params(self, site: Site) -> dict[str, Param]:
        """v [d]; w [4d, 1], b [1]; with L0 the gates [4d, 1] and their lambda [1]."""
        params = {"v": Param((site.d_out,))}
        if self.alpha:
            params |= {"w": Param((site.d_in, 1)), "b": Param((1,))}
        if self.gate is not None:
            params |= {"gate": Param((site.d_in, 1), "gate"), "strength": Param((1,), "constant")}
        return params

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """w like torch.nn.Linear's, everything else constant."""
        if name == "w":
            bound = shape[0] ** -0.5
            return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=random)
        value = {"gate": self.open_at_start, "strength": self.strength}.get(name, 0.0)
        return torch.full(shape, value, dtype=torch.float32)

    def bucketed(self) -> TokenShift:
        """Starting values do not separate groups."""
        return replace(self, open_at_start=0.0, strength=0.0)

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """(w . x + b) v, or v alone."""
        v = route.vector(p["v"], at.y)
        return self.weights(route, p, at) * v if self.alpha else v.expand_as(at.y)

    def merged(self, p: Tensors, base: Leaf) -> Tensors | str:
        """b + v, if all tokens get the same shift."""
        return (
            "weighs its shift by the token, which the base's weights cannot express"
            if self.alpha
            else {"bias": p["v"][0]}
        )

    def weights(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """[n, 1] alpha: how much of v each token gets."""
        return route.linear(at.x, p["w"], p["b"])

    @property
    def gated(self) -> bool:
        """Whether it has L0 gates."""
        return self.gate is not None

    def effective(self, p: Tensors, uniform: Uniform | None) -> Tensors:
        """w times its gates."""
        if self.gate is None:
            return p
        log_a = p["gate"]
        z = self.gate.settled(log_a) if uniform is None else self.gate.sample(log_a, uniform("gate", log_a))
        return {**p, "w": p["w"] * z}

    def penalty(self, p: Tensors) -> Tensor | None:
        """lambda * E[L0] per entry."""
        if self.gate is None:
            return None
        return (self.gate.expected_l0(p["gate"]).sum(dim=(1, 2)) * p["strength"][:, 0]).float()


_GATE = ("low", "high", "temperature", "gate", "gate_lr")


@methods.register("adapterbias")
@dataclass(frozen=True, kw_only=True)
class AdapterBias(SlotMethod):
    """A vector and a linear layer per transformer layer."""

    learning_rate: ClassVar[float] = 3e-3

    share: Literal["none", "v", "alpha", "both"] = option("none", "what all layers share")
    alpha: bool = option(True, "weigh the shift by token; false: the same shift for every token")
    l0: float = option(0.0, "strength of the L0 penalty on alpha's weights; 0: no gates", at_least=0)
    low: float = option(-0.1, "lower end of the stretched gate")
    high: float = option(1.1, "upper end of the stretched gate")
    temperature: float = option(2 / 3, "temperature of the gate")
    gate: float = option(0.0, "initial log-odds of a gate being open")
    gate_lr: float = option(0.0, "peak learning rate of the gates; 0: the run's own", at_least=0)

    def check(self) -> None:
        """L0 and sharing of alpha need alpha."""
        if not self.alpha and (self.l0 or self.share in ("alpha", "both")):
            raise SpecError("adapterbias: alpha=false leaves nothing for l0 or share=alpha to act on")
        HardConcrete(self.low, self.high, self.temperature)

    @property
    def moot(self) -> Collection[str]:
        """Without L0 there are no gates, whatever their numbers."""
        return () if self.l0 else _GATE

    def parts(self, sites: Sites) -> list[Part]:
        """A shift at each feed-forward output, and the norm of that sublayer."""
        gate = HardConcrete(self.low, self.high, self.temperature) if self.l0 else None
        delta = TokenShift(self.alpha, gate, self.gate, self.l0)
        parts = []
        for site in sites.select(("ffn.out",), sites.choose_layers(self.layers)):
            row_of_tensor = dict.fromkeys(delta.params(site), site.name)
            if self.share in ("v", "both"):
                row_of_tensor["v"] = "shared"
            if self.share in ("alpha", "both"):
                row_of_tensor |= {name: "shared" for name in row_of_tensor if name != "v"}
            parts.append(Part(site, delta, row_of_tensor))
            norm = sites.at("ffn.norm", site.layer)
            parts += [NormShift.at(norm)] if norm is not None else []
        return parts

    @property
    def gate_rate(self) -> float | None:
        """None by default: from log-odds 0 the run's own rate suffices to shut gates."""
        return self.gate_lr or None

    def gates_left(self, tensors: Tensors) -> dict[str, dict[str, float]]:
        """The gates of every w."""
        gate = HardConcrete(self.low, self.high, self.temperature)
        return {name: gate.left(t) for name, t in tensors.items() if name.endswith(".gate")}

    def finished(self) -> AdapterBias:
        """The same without gates."""
        return replace(self, l0=0.0)

    def finish(self, tensors: Tensors) -> dict[str, Tensor]:
        """Apply the gates, drop them, and keep the rest of w sparse."""
        if not self.l0:
            return dict(tensors)
        gate = HardConcrete(self.low, self.high, self.temperature)
        finished = {name: t for name, t in tensors.items() if not name.endswith((".gate", ".strength"))}
        for name in [n for n in finished if n.endswith(".w")]:
            z = gate.settled(tensors[name.removesuffix("w") + "gate"])
            finished |= sparse.encode(name, finished.pop(name) * z)
        return finished
