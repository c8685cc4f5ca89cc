"""Random numbers that belong to a key, not to a position in a global stream.

Everything random about a slot (initial values, dropout, mixout, L0 noise) is a function of its own seed, its
own step and the name of the place, so it does not depend on which other slots are in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def generator(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by a hash of the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "little") >> 1)


@dataclass(frozen=True)
class Keys:
    """What makes a training pass's noise reproducible: each slot's seed and step."""

    of_slot: Mapping[int, tuple[int, int]]
    """slot -> (seed, step); a slot that is not here is evaluated, not trained."""
    without_dropout: frozenset[int] = frozenset()
    """Slots that train without dropout; their other noise stays."""

    def uniform(self, slot: int, place: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform numbers in (0, 1) for one slot at one place."""
        noise = torch.empty(shape, device=device)
        noise.uniform_(generator=generator(*self.of_slot[slot], place, device=device))
        return noise.clamp_(1e-6, 1 - 1e-6)

    def keep(self, slot: int, place: str, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """A mask for one slot at one place: 0 with probability p, else 1 / (1 - p)."""
        mask = torch.empty(shape, device=device)
        mask.bernoulli_(1 - p, generator=generator(*self.of_slot[slot], place, device=device))
        return mask.div_(1 - p) if p < 1 else mask
