"""Copies of many tensors to the CPU, a few transfers for all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_SMALL = 1 << 18
"""A tensor of up to this many elements is copied together with others; larger ones would only take memory twice."""


@torch.no_grad()
def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors on the CPU. Every copy from a GPU waits for the device, and an adapter has a hundred tensors,
    most of them so small that the wait is the whole cost."""
    small_names: dict[torch.dtype, list[str]] = {}
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.numel() <= _SMALL:
            small_names.setdefault(tensor.dtype, []).append(name)
        else:
            copies[name] = tensor.to("cpu", copy=True)
    for names in small_names.values():
        flat = torch.cat([tensors[name].reshape(-1) for name in names]).cpu()
        parts = torch.split(flat, [tensors[name].numel() for name in names])
        copies |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: copies[name] for name in tensors}
