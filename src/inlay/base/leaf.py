"""The base's own projection or norm at a site, for whatever works with more than its result.

Surprising: a site may be some columns of a fused projection, and GPT-2 keeps its weights the other way round. Nobody
sees either of them here.
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
    """What is frozen at one site. Nothing is computed or copied until it is asked for."""

    site: Site
    module: nn.Module
    plain: Callable[[Tensor], Tensor]
    """The module's own forward, without deltas."""
    form: str = ""
    """How its weight is kept, if not plainly: int8, fp8, prepack."""

    def product(self, x: Tensor) -> Tensor:
        """[..., d_in] -> [..., d_out]: any input times the weight, however that is kept, without the bias."""
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
        found = getattr(self.module, name)
        assert isinstance(found, torch.Tensor)
        return found
