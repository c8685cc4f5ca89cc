"""One product instead of several projections of the same input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.base.joint import joint_bias
from inlay.base.products import LinearBackend
from inlay.kernels.shared import side_by_side


class _Joint(torch.autograd.Function):
    """One product whose result is split; the gradients of the parts are joined again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weight)
        return torch.split(F.linear(x, weight, bias), list(sizes), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _gradient(list(gradients), *ctx.saved_tensors), None, None, None


@torch.library.custom_op("inlay::joint_gradient", mutates_args=())
def _gradient(parts: list[Tensor], weight: Tensor) -> Tensor:
    """The parts [..., out_i] side by side, times weight [sum of out_i, in]."""
    return side_by_side(parts) @ weight


@_gradient.register_fake
def _(parts: list[Tensor], weight: Tensor) -> Tensor:
    return parts[0].new_empty((*parts[0].shape[:-1], weight.shape[1]))


class FusedProduct:
    """Several projections of one input as one product. Their weights become parts of one tensor; none is copied."""

    def __init__(self, modules: Mapping[str, nn.Linear], backend: LinearBackend | None = None):
        self._modules = list(modules.values()) if backend is None else []
        self._backend = backend
        self.sizes = [module.out_features for module in modules.values()]
        if backend is None:
            self._join()

    def _join(self) -> None:
        weights = [module.weight.data for module in self._modules]
        biases = [None if module.bias is None else module.bias.data for module in self._modules]
        self.weight, self.bias = torch.cat(weights), joint_bias(biases, weights)
        for module, weight in zip(self._modules, torch.split(self.weight, self.sizes), strict=True):
            module.weight.data = weight

    def __call__(self, kind: int, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """The result of one projection; those of the others wait in `cache` for a call with the same input."""
        if cache.get("x") is not x:
            cache["x"] = x
            cache["y"] = self._compute(x)
        part: Tensor = cache["y"][kind]
        if kind == len(self.sizes) - 1:
            cache.clear()
        return part

    def _compute(self, x: Tensor) -> tuple[Tensor, ...]:
        if self._backend is not None:
            return self._backend.parts(x, self.sizes)
        return _Joint.apply(x, self.weight, self.bias, self.sizes)  # type: ignore[no-any-return, no-untyped-call]

    def undo(self) -> None:
        """Give every projection a weight of its own again."""
        for module in self._modules:
            module.weight.data = module.weight.data.clone()
