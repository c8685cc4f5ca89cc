"""Tensors copied to the CPU, few copies for many."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_SMALL = 1 << 18
"""Elements up to which a tensor travels with others; a larger one would only need their memory twice."""


@torch.no_grad()
def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors on the CPU. From a GPU every copy waits for the device: an adapter has a hundred tensors, most
    of them so small that waiting is all it takes."""
    together: dict[torch.dtype, list[str]] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.numel() <= _SMALL:
            together.setdefault(tensor.dtype, []).append(name)
        else:
            found[name] = tensor.to("cpu", copy=True)
    for names in together.values():
        flat = torch.cat([tensors[name].reshape(-1) for name in names]).cpu()
        parts = torch.split(flat, [tensors[name].numel() for name in names])
        found |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: found[name] for name in tensors}
