"""Weight-level adapters: a difference of the base's own parameters, applied for one pass.

They do not stack, so each runs its rows alone, through `torch.func.functional_call`: the base itself is never
written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from inlay.bank.delta import WeightMethod
from inlay.bank.mixout import keep_mask
from inlay.bank.noise import Keys
from inlay.base.load import Base
from inlay.base.sites import stores_in_out


@dataclass
class WeightSlot:
    """One loaded weight-level adapter."""

    method: WeightMethod
    tensors: dict[str, Tensor]
    """Floating-point tensors are parameters; the positions of sparse ones are not."""

    @classmethod
    def load(cls, method: WeightMethod, tensors: Mapping[str, Tensor], device: torch.device) -> WeightSlot:
        """Copy an adapter's tensors to the device."""
        placed: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            copy = tensor.detach().clone().to(device)
            placed[name] = nn.Parameter(copy.float()) if copy.is_floating_point() else copy
        return cls(method, placed)

    def parameters(self) -> list[nn.Parameter]:
        """What trains."""
        return [t for t in self.tensors.values() if isinstance(t, nn.Parameter)]

    def effective(self, base: Base, slot: int, keys: Keys | None, within: str = "") -> dict[str, Tensor]:
        """The changed parameters of the base for one pass; only those whose names start with `within`."""
        training = keys is not None and slot in keys.of_slot
        weights: dict[str, Tensor] = {}
        for name in (n for n in self.method.targets(base.sites) if n.startswith(within)):
            frozen = base.model.get_parameter(name)
            difference = self._difference(name, frozen, slot, keys if training else None)
            if training and self.method.mixout:
                assert keys is not None
                unit, p = self.method.mixout_unit, self.method.mixout
                inputs = _input_dimension(base.model, name)
                keep = keep_mask(keys, slot, name, tuple(frozen.shape), p, unit, inputs, frozen.device)
                difference = difference * keep
            weights[name] = frozen + difference.to(frozen.dtype)
        return weights

    def _difference(self, name: str, frozen: Tensor, slot: int, keys: Keys | None) -> Tensor:
        if keys is None:
            return self.method.difference(name, self.tensors, frozen, None)

        def uniform(tensor: str, like: Tensor) -> Tensor:
            return keys.uniform(slot, f"gate {tensor}", tuple(like.shape), like.device)

        return self.method.difference(name, self.tensors, frozen, uniform)


def call_with(
    weights: Mapping[str, Tensor], module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Run `forward`, a function of this module, with some of the module's parameters replaced."""
    if not weights:
        return forward(*args, **kwargs)
    return functional_call(_Shell(module, forward), {f"inner.{n}": w for n, w in weights.items()}, args, kwargs)


class _Shell(nn.Module):
    """functional_call replaces a module's parameters and calls it; this module calls one of its functions instead."""

    def __init__(self, inner: nn.Module, run: Callable[..., Any]):
        super().__init__()
        self.inner = inner
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def _input_dimension(model: nn.Module, name: str) -> int:
    """Which dimension of a weight counts its input neurons; an embedding's are its words."""
    module = model.get_submodule(name.rpartition(".")[0])
    return 0 if isinstance(module, nn.Embedding) or stores_in_out(module) else 1
