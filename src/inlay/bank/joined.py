"""One product in the place of several projections of the same input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.base.products import Product


class FusedProduct:
    """Several projections of one input as one product. Their weights become parts of one tensor; none is copied."""

    def __init__(self, modules: Mapping[str, nn.Linear], own: Product | None = None):
        self._modules = list(modules.values()) if own is None else []
        self._own = own
        self.sizes = [module.out_features for module in modules.values()]
        if own is None:
            self._join()

    def _join(self) -> None:
        self.weight = torch.cat([module.weight.data for module in self._modules])
        biases = [module.bias.data for module in self._modules if module.bias is not None]
        self.bias = torch.cat(biases) if len(biases) == len(self._modules) else None
        for module, weight in zip(self._modules, torch.split(self.weight, self.sizes), strict=True):
            module.weight.data = weight

    def __call__(self, kind: int, x: Tensor, kept: dict[str, Any]) -> Tensor:
        """The result of one of them; those of the others are kept until they are asked for, with the same input."""
        if kept.get("x") is not x:
            kept["x"] = x
            y = F.linear(x, self.weight, self.bias) if self._own is None else self._own(x)
            kept["y"] = torch.split(y, self.sizes, -1)
        part: Tensor = kept["y"][kind]
        if kind == len(self.sizes) - 1:
            kept.clear()
        return part

    def undo(self) -> None:
        """Give every projection a weight of its own again."""
        for module in self._modules:
            module.weight.data = module.weight.data.clone()
