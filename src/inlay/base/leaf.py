"""The base's own projection or norm at a site, for code that needs more than its output.

Surprising: a site may be some columns of a fused projection, and GPT-2 stores its weights transposed. A `Leaf` hides
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.base.sites import Site, stores_in_out
from inlay.errors import BaseError


@dataclass(frozen=True, eq=False)
class Leaf:
    """The frozen module at one site. Nothing is computed or copied until it is needed."""

    site: Site
    module: nn.Module
    plain: Callable[[Tensor], Tensor]
    """The module's own forward, without deltas."""
    form: str = ""
    """How its weight is kept, if not plain: int8, fp8, prepack."""

    def product(self, x: Tensor) -> Tensor:
        """[..., d_in] -> [..., d_out]: any input times the weight, in whatever form it is kept, without the bias."""
        if not self.form:
            return x @ self.weight
        y = self.plain(x)
        y = y if self.site.columns is None else y[..., slice(*self.site.columns)]
        return y if self.bias is None else y - self.bias

    @property
    def weight(self) -> Tensor:
        """[d_in, d_out]; a norm's is [d]. A view. Only a base with plain weights has it."""
        if self.form:
            raise BaseError(f"the weight of {self.site.name} is kept as {self.form}; load the base without {self.form}")
        return self.part_of(self._parameter("weight"))

    @property
    def bias(self) -> Tensor | None:
        """[d_out]; None without one."""
        return self.part_of(self._parameter("bias")) if self.site.bias else None

    def part_of(self, parameter: Tensor) -> Tensor:
        """This site's view of the module's parameter, or of a tensor like it: [d_in, d_out] or [d_out]."""
        if parameter.dim() == 2 and not stores_in_out(self.module):
            parameter = parameter.T
        return parameter if self.site.columns is None else parameter[..., slice(*self.site.columns)]

    def _parameter(self, name: str) -> Tensor:
        parameter = getattr(self.module, name)
        assert isinstance(parameter, torch.Tensor)
        return parameter
