"""Diff pruning (Guo et al. 2021): a sparse difference of all weights.

    theta_0 + z w,   z a hard-concrete gate per parameter, lambda * E[L0] in the loss
    theta_0 + z z_g w,   structured: z_g is one more gate for each matrix and each vector g as a whole

A parameter of a structured difference is used if both gates are open: E[L0] is the sum of P(z > 0) P(z_g > 0), as in
the paper. The authors' code adds the two, which leaves a single gate z_g next to no penalty.

Gates have their own learning rate (0.1 in Guo et al.'s code) and their own clipping: they start at log-odds 5 and shut
below 0, which the run's rate would never reach. Then only the largest differences are kept, up to `target` of the
base's parameters, and trained again with the mask fixed. They are stored sparse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.bank import sparse
from inlay.bank.delta import Param, Tensors, Uniform, WeightMethod
from inlay.bank.gates import HardConcrete
from inlay.base.sites import Sites
from inlay.config import option
from inlay.methods.finetune import weights_of
from inlay.registry import methods


@methods.register("diffprune")
@dataclass(frozen=True, kw_only=True)
class DiffPrune(WeightMethod):
    """A gate and a difference for every weight while training; a small part of the differences afterwards."""

    retunes = True

    target: float = option(0.005, "share of the base's parameters kept at the end", above=0, at_most=1)
    l0: float = option(1.25e-7, "strength of the L0 penalty", at_least=0)
    low: float = option(-1.5, "lower end of the stretched gate")
    high: float = option(1.5, "upper end of the stretched gate")
    temperature: float = option(1.0, "temperature of the gate")
    gate: float = option(5.0, "initial log-odds of a gate being open")
    structured: bool = option(False, "one more gate for each matrix and each vector as a whole")
    gate_lr: float = option(0.1, "peak learning rate of the gates; 0: the run's own", at_least=0)

    def check(self) -> None:
        """Refuse impossible gates."""
        HardConcrete(self.low, self.high, self.temperature)

    @property
    def gate_rate(self) -> float | None:
        """As in Guo et al.'s code, far above the rate of the differences."""
        return self.gate_lr or None

    def gates_left(self, tensors: Tensors) -> dict[str, dict[str, float]]:
        """The gates of all weights together, and of all matrices and vectors."""
        names = _gated(tensors)
        if not names:
            return {}
        gates = {"all": self._gate.left(torch.cat([tensors[f"{name}.gate"].flatten() for name in names]))}
        groups = [tensors[group] for name in names if (group := f"{name}.group.gate") in tensors]
        return gates | ({"groups": self._gate.left(torch.cat(groups))} if groups else {})

    @property
    def _gate(self) -> HardConcrete:
        return HardConcrete(self.low, self.high, self.temperature)

    def targets(self, sites: Sites) -> list[str]:
        """The parameters of the chosen layers."""
        return weights_of(sites, self.layers)

    def params(self, sites: Sites) -> dict[str, Param]:
        """A difference and a gate per weight, and a gate per tensor."""
        params = {name: Param(sites.parameters[name]) for name in self.targets(sites)}
        gates = {f"{name}.gate": Param(param.shape, "gate") for name, param in params.items()}
        groups = {f"{name}.group.gate": Param((1,), "gate") for name in params} if self.structured else {}
        return params | gates | groups

    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """No difference, gates open."""
        params = self.params(sites)
        start = {"gate": self.gate}
        return {n: torch.full(p.shape, start.get(p.role, 0.0), dtype=torch.float32) for n, p in params.items()}

    def by_site(self, sites: Sites) -> dict[str, int]:
        """How many are kept at the end; while training, every weight has a difference and a gate."""
        total = sum(torch.Size(sites.parameters[name]).numel() for name in self.targets(sites))
        return {"kept": self.budget(total)}

    def budget(self, total: int) -> int:
        """How many differences are kept."""
        return max(1, int(self.target * total))

    def difference(self, name: str, tensors: Tensors, like: Tensor, uniform: Uniform | None) -> Tensor:
        """z w while there are gates, the sparse difference afterwards."""
        log_a, log_g = tensors.get(f"{name}.gate"), tensors.get(f"{name}.group.gate")
        if log_a is not None:
            z = self._gate.settled(log_a) if uniform is None else self._gate.sample(log_a, uniform(name, log_a))
            if log_g is None:
                return z * tensors[name]
            group = f"{name}.group"
            z_g = self._gate.settled(log_g) if uniform is None else self._gate.sample(log_g, uniform(group, log_g))
            return z_g * z * tensors[name]
        if name + sparse.INDEX not in tensors:
            return tensors.get(name, torch.zeros_like(like))
        return sparse.spread(tensors[name + sparse.INDEX], tensors[name + sparse.VALUE], tuple(like.shape))

    def penalty(self, tensors: Tensors) -> Tensor | None:
        """lambda * E[L0]; none once the mask is fixed."""
        names = _gated(tensors)
        if not names:
            return None
        used = [self._gate.expected_l0(tensors[f"{name}.gate"]).sum() for name in names]
        for i, name in enumerate(names):
            if (group := f"{name}.group.gate") in tensors:
                used[i] = used[i] * self._gate.expected_l0(tensors[group]).sum()
        return self.l0 * torch.stack(used).sum()

    def draws(self, tensors: Tensors) -> bool:
        """Gates are drawn until they are dropped."""
        return super().draws(tensors) or bool(_gated(tensors))

    def finish(self, tensors: Tensors) -> dict[str, Tensor]:
        """Keep the largest differences, up to the target; already sparse tensors stay as they are."""
        names = _gated(tensors)
        if not names:
            return dict(tensors)
        dense = {name: self.difference(name, tensors, tensors[name], None).detach() for name in names}
        magnitude = torch.cat([d.abs().flatten() for d in dense.values()])
        keep = magnitude.topk(self.budget(magnitude.numel())).indices
        mask = torch.zeros_like(magnitude, dtype=torch.bool)
        mask[keep] = True
        finished: dict[str, Tensor] = {}
        for name, part in zip(names, torch.split(mask, [d.numel() for d in dense.values()]), strict=True):
            index = part.nonzero().squeeze(1)
            value = dense[name].flatten()[index]
            finished |= {name + sparse.INDEX: index.to(torch.int32), name + sparse.VALUE: value}
        return finished


def _gated(tensors: Tensors) -> list[str]:
    """The weights that still have gates."""
    gates = [name.removesuffix(".gate") for name in tensors if name.endswith(".gate")]
    return [name for name in gates if not name.endswith(".group")]
