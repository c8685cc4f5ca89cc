"""The activations of adapters, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "swish": F.silu,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "identity": lambda x: x,
}
"""All have f(0) = 0: padded units then stay zero through training."""
