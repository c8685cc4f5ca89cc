"""Hard-concrete gates (Louizos et al. 2018): a differentiable stand-in for "is this parameter used?".

    s = sigmoid((log u - log(1 - u) + log a) / temperature),  z = clamp(s * (high - low) + low, 0, 1)
    E[L0] = P(z > 0) = sigmoid(log a - temperature * log(-low / high))

Without noise z is taken at the middle of the distribution: s = sigmoid(log a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.errors import SpecError


@dataclass(frozen=True)
class HardConcrete:
    """The fixed numbers of a gate. Diff pruning's code (Guo et al. 2021) has -1.5, 1.5 and 1; Louizos et al. have -0.1,
    1.1 and 2/3."""

    low: float = -1.5
    high: float = 1.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.low, self.high, self.temperature)
        if not (self.low < 0 and self.high > 1 and self.temperature > 0 and all(map(math.isfinite, numbers))):
            raise SpecError("a hard-concrete gate needs finite numbers with low < 0, high > 1 and temperature > 0")

    def sample(self, log_a: Tensor, uniform: Tensor) -> Tensor:
        """A gate value per parameter, differentiable in log_a."""
        noise = torch.log(uniform) - torch.log1p(-uniform)
        return self._stretch(torch.sigmoid((noise + log_a) / self.temperature))

    def settled(self, log_a: Tensor) -> Tensor:
        """The gate value used when not training."""
        return self._stretch(torch.sigmoid(log_a))

    def expected_l0(self, log_a: Tensor) -> Tensor:
        """The probability that each gate is not zero."""
        return torch.sigmoid(log_a - self.temperature * math.log(-self.low / self.high))

    def left(self, log_a: Tensor) -> dict[str, float]:
        """How many gates there are, how many are not exactly shut when settled, and how many are expected open."""
        open_ = float(self.settled(log_a).count_nonzero())
        return {"of": float(log_a.numel()), "left": open_, "expected": float(self.expected_l0(log_a.double()).sum())}

    def _stretch(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0.0, 1.0)
