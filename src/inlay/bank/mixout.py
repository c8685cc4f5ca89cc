"""Mixout (Lee et al. 2020): each step, part of the parameters falls back to where training started.

    theta_start + keep * (theta - theta_start),   keep = 0 with probability p, else 1 / (1 - p)

which is the paper's ((1 - M) theta + M theta_start - p theta_start) / (1 - p) with M = 1 - (1 - p) keep. The unit
is a neuron with all its outgoing weights, or a single element. An element of a vector belongs to one neuron, so
vectors are always dropped by element.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inlay.bank.noise import Keys


def mix(value: Tensor, start: Tensor, keep: Tensor) -> Tensor:
    """The mixed parameter; `keep` broadcasts."""
    return start + keep * (value - start)


def keep_mask(
    keys: Keys, slot: int, name: str, shape: tuple[int, ...], p: float, unit: str, inputs: int, device: torch.device
) -> Tensor:
    """The mask of one tensor; `inputs` is the dimension of its input neurons."""
    if unit == "neuron" and len(shape) > 1:
        shape = tuple(n if i == inputs else 1 for i, n in enumerate(shape))
    return keys.keep(slot, f"mixout {name}", shape, p, device)
