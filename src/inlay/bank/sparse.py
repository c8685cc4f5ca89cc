"""Sparse tensors in an adapter's file: `name` becomes `name#index` (int32) and `name#value`.

Positions are in the flattened tensor; an empty pair is a tensor of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inlay.errors import AdapterError

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
    if name + INDEX not in tensors and name + VALUE not in tensors:
        return None
    index, value = tensors.get(name + INDEX), tensors.get(name + VALUE)
    size = torch.Size(shape).numel()
    if index is None or value is None or index.shape != value.shape or index.dim() != 1:
        raise AdapterError(f"the sparse tensor {name} needs as many positions as values")
    if index.is_floating_point() or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < size):
        raise AdapterError(f"the sparse tensor {name} has positions outside its {size} elements")
    if len(torch.unique(index)) < len(index):
        raise AdapterError(f"the sparse tensor {name} has a position twice")
    return spread(index, value, shape)


def spread(index: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A dense tensor with these values at these positions, which `decode` has checked: nothing waits for a GPU."""
    dense = value.new_zeros(torch.Size(shape).numel())
    return dense.index_put((index.long(),), value).view(shape)
