"""One product in the place of several projections of the same input."""

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
    """One product, its result in parts; the gradients of the parts are joined again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weight)
        return torch.split(F.linear(x, weight, bias), list(sizes), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _gradient(list(gradients), *ctx.saved_tensors), None, None, None


@torch.library.custom_op("inlay::joint_gradient", mutates_args=())
def _gradient(parts: list[Tensor], weight: Tensor) -> Tensor:
    """The parts [..., some] side by side, times weight [all, in]."""
    return side_by_side(parts) @ weight


@_gradient.register_fake
def _(parts: list[Tensor], weight: Tensor) -> Tensor:
    return parts[0].new_empty((*parts[0].shape[:-1], weight.shape[1]))


class FusedProduct:
    """Several projections of one input as one product. Their weights become parts of one tensor; none is copied."""

    def __init__(self, modules: Mapping[str, nn.Linear], own: LinearBackend | None = None):
        self._modules = list(modules.values()) if own is None else []
        self._own = own
        self.sizes = [module.out_features for module in modules.values()]
        if own is None:
            self._join()

    def _join(self) -> None:
        weights = [module.weight.data for module in self._modules]
        biases = [None if module.bias is None else module.bias.data for module in self._modules]
        self.weight, self.bias = torch.cat(weights), joint_bias(biases, weights)
        for module, weight in zip(self._modules, torch.split(self.weight, self.sizes), strict=True):
            module.weight.data = weight

    def __call__(self, kind: int, x: Tensor, kept: dict[str, Any]) -> Tensor:
        """The result of one of them; those of the others are kept until they are asked for, with the same input."""
        if kept.get("x") is not x:
            kept["x"] = x
            kept["y"] = self._compute(x)
        part: Tensor = kept["y"][kind]
        if kind == len(self.sizes) - 1:
            kept.clear()
        return part

    def _compute(self, x: Tensor) -> tuple[Tensor, ...]:
        if self._own is not None:
            return self._own.parts(x, self.sizes)
        return _Joint.apply(x, self.weight, self.bias, self.sizes)  # type: ignore[no-any-return, no-untyped-call]

    def undo(self) -> None:
        """Give every projection a weight of its own again."""
        for module in self._modules:
            module.weight.data = module.weight.data.clone()
