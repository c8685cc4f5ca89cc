"""Diff pruning (Guo et al. 2021): a sparse difference of all weights.

    theta_0 + z w,   z a hard-concrete gate per parameter, lambda * E[L0] in the loss

Gates learn at a rate of their own (0.1 in Guo et al.'s code), and are clipped by themselves: they start at log-odds 5
and shut below 0, which the run's own rate would never reach. Then the differences of largest magnitude are kept up to
`target` of the base's parameters, and the kept ones are tuned again with the mask fixed. Stored sparse.
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
    gate_lr: float = option(0.1, "peak learning rate of the gates; 0: the run's own", at_least=0)

    def check(self) -> None:
        """A gate that can be."""
        HardConcrete(self.low, self.high, self.temperature)

    @property
    def gate_rate(self) -> float | None:
        """As Guo et al.'s code has it: far above that of the differences."""
        return self.gate_lr or None

    def gates_left(self, tensors: Tensors) -> dict[str, dict[str, float]]:
        """Of all weights together."""
        gates = [t.flatten() for name, t in tensors.items() if name.endswith(".gate")]
        return {"all": self._gate.left(torch.cat(gates))} if gates else {}

    @property
    def _gate(self) -> HardConcrete:
        return HardConcrete(self.low, self.high, self.temperature)

    def targets(self, sites: Sites) -> list[str]:
        """The parameters of the chosen layers."""
        return weights_of(sites, self.layers)

    def params(self, sites: Sites) -> dict[str, Param]:
        """A difference and a gate per weight."""
        params = {name: Param(sites.parameters[name]) for name in self.targets(sites)}
        return params | {f"{name}.gate": Param(param.shape, "gate") for name, param in params.items()}

    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """No difference, gates open."""
        params = self.params(sites)
        start = {"gate": self.gate}
        return {n: torch.full(p.shape, start.get(p.role, 0.0), dtype=torch.float32) for n, p in params.items()}

    def by_site(self, sites: Sites) -> dict[str, int]:
        """What is kept at the end; while training, every weight has a difference and a gate."""
        total = sum(torch.Size(sites.parameters[name]).numel() for name in self.targets(sites))
        return {"kept": self.budget(total)}

    def budget(self, total: int) -> int:
        """How many differences are kept."""
        return max(1, int(self.target * total))

    def difference(self, name: str, tensors: Tensors, like: Tensor, uniform: Uniform | None) -> Tensor:
        """z w while gates are there, the sparse difference afterwards."""
        log_a = tensors.get(f"{name}.gate")
        if log_a is not None:
            z = self._gate.settled(log_a) if uniform is None else self._gate.sample(log_a, uniform(name, log_a))
            return z * tensors[name]
        if name + sparse.INDEX not in tensors:
            return tensors.get(name, torch.zeros_like(like))
        return sparse.spread(tensors[name + sparse.INDEX], tensors[name + sparse.VALUE], tuple(like.shape))

    def penalty(self, tensors: Tensors) -> Tensor | None:
        """lambda * E[L0]; none once the mask is fixed."""
        gates = [t for name, t in tensors.items() if name.endswith(".gate")]
        if not gates:
            return None
        return self.l0 * torch.stack([self._gate.expected_l0(g).sum() for g in gates]).sum()

    def draws(self, tensors: Tensors) -> bool:
        """Gates are drawn, as long as they are there."""
        return super().draws(tensors) or any(name.endswith(".gate") for name in tensors)

    def finish(self, tensors: Tensors) -> dict[str, Tensor]:
        """Keep the largest differences, up to the target; already sparse tensors stay as they are."""
        gates = [name for name in tensors if name.endswith(".gate")]
        if not gates:
            return dict(tensors)
        names = [name.removesuffix(".gate") for name in gates]
        dense = {n: (self._gate.settled(tensors[f"{n}.gate"]) * tensors[n]).detach() for n in names}
        magnitude = torch.cat([d.abs().flatten() for d in dense.values()])
        keep = magnitude.topk(self.budget(magnitude.numel())).indices
        mask = torch.zeros_like(magnitude, dtype=torch.bool)
        mask[keep] = True
        kept: dict[str, Tensor] = {}
        for name, part in zip(names, torch.split(mask, [d.numel() for d in dense.values()]), strict=True):
            index = part.nonzero().squeeze(1)
            value = dense[name].flatten()[index]
            kept |= {name + sparse.INDEX: index.to(torch.int32), name + sparse.VALUE: value}
        return kept
