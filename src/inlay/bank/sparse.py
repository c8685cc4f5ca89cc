"""Sparse tensors in an adapter's file: `name` becomes `name#index` (int32) and `name#value`.

Positions are in the flattened tensor; an empty pair is a tensor of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

INDEX, VALUE = "#index", "#value"


def encode(name: str, dense: Tensor) -> dict[str, Tensor]:
    """Keep what is not zero."""
    flat = dense.flatten()
    index = flat.nonzero().squeeze(1)
    return {name + INDEX: index.to(torch.int32), name + VALUE: flat[index]}


def decode(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor | None:
    """The dense tensor of this name, whether it is stored dense, sparse, or not at all."""
    if name in tensors:
        return tensors[name]
    if name + INDEX not in tensors:
        return None
    value = tensors[name + VALUE]
    dense = value.new_zeros(torch.Size(shape).numel())
    dense[tensors[name + INDEX].long()] = value
    return dense.view(shape)
