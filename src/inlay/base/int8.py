"""Projections in int8, for serving on the CPU, which multiplies int8 faster than fp32.

Both factors are symmetric about zero. A weight has one scale per output; an activation is scaled as it runs, with one
scale per token, so that an answer does not depend on the rows beside it. Embeddings, norms, pooler and adapters stay
fp32. A product differs from the fp32 one by about 1 %.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from inlay.base.products import LinearBackend

_TINY = 1e-12
_VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")


class Int8(LinearBackend):
    """A product of an int8 weight and activations that are converted token by token."""

    kind = "int8"

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(weight, bias)
        self._scale = weight.abs().amax(1).clamp(min=_TINY) / 127
        quantised = torch.round(weight / self._scale[:, None]).to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._levels = _levels()
        # and a half, since a conversion to whole numbers cuts
        self._centre = torch.tensor(self._levels + 1.5, dtype=torch.float32)

    def compute(self, x: Tensor) -> Tensor:
        """The product, without a gradient."""
        flat = x.reshape(-1, x.shape[-1])
        top = torch.maximum(flat.amax(1, keepdim=True), -flat.amin(1, keepdim=True)).clamp_(min=_TINY)
        quantised = torch.addcmul(self._centre, flat, self._levels / top).to(torch.uint8)
        operands = (1.0, self._levels + 1, self._packed, self._scale, self._zeros, None, 1.0, 0, torch.float32)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(quantised, *operands, "none", [], "")
        top /= self._levels
        y = y.mul_(top) if self._bias is None else torch.addcmul(self._bias, y, top, out=y)
        return y.view(*x.shape[:-1], self.out)


@functools.cache
def _levels() -> int:
    """The largest int8 number of a token. Without VNNI two products are added in 16 bits, where 127 would overflow."""
    capabilities = torch.cpu.get_capabilities()
    return (
        127
        if any(capabilities.get(name) for name in _VNNI) or capabilities.get("architecture") not in ("x86_64", "x86")
        else 63
    )
