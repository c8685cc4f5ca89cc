"""A group: all adapters with the same bucketed delta at the same sites, in stacks; and where it is mounted."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.bank.delta import Delta, Param, Part
from inlay.base.sites import Site

Names = tuple[tuple[str, str], ...]
"""(the delta's tensor name, the stack's), for every tensor of a mount."""
GroupKey = tuple[Delta, tuple[tuple[str, Names], ...]]
"""A bucketed delta, and the stacks that it reads at every site."""


class Group:
    """All adapters of one bucketed delta at the same sites."""

    def __init__(self, key: GroupKey, parts: Sequence[Part], device: torch.device, number: int):
        self.key = key
        self.delta = key[0]
        self.number = number
        """Later groups have larger numbers; none is used twice."""
        self.row = -1
        """Its row in the bank's table of entries."""
        self.version = 0
        """Changes when the stacks move, which makes earlier recordings invalid."""
        self.capacity = 2
        self.entry_of: dict[int, int] = {}
        self.free = [1]
        """Entries that no slot has, as a heap."""
        self.stacks: dict[str, nn.Parameter] = {}
        self.gates: set[str] = set()
        """The stacks that hold gates."""
        self.shared: set[str] = set()
        """The stacks with one entry for all slots."""
        self.mounts = [Mount(part.site, self, part.names()) for part in parts]
        for part in parts:
            padded = self.delta.params(part.site)
            for name, full in part.names().items():
                self._add_stack(full, padded[name], device)

    @property
    def state(self) -> tuple[int, int]:
        """What a recording of work with this group depends on."""
        return self.number, self.version

    def enter(self, slot: int) -> None:
        """Give a slot an entry."""
        if not self.free:
            self.grow()
        self.entry_of[slot] = heapq.heappop(self.free)

    def leave(self, slot: int) -> None:
        """Take a slot's entry back and clear it."""
        entry = self.entry_of.pop(slot)
        heapq.heappush(self.free, entry)
        with torch.no_grad():
            for stack in (stack for name, stack in self.stacks.items() if name not in self.shared):
                stack[entry].zero_()
                if stack.grad is not None:
                    stack.grad[entry].zero_()

    def grow(self) -> None:
        """Double the capacity: all stacks, or none if memory runs out."""
        unshared = {name: stack for name, stack in self.stacks.items() if name not in self.shared}
        grown = {n: (_doubled(s.data), None if s.grad is None else _doubled(s.grad)) for n, s in unshared.items()}
        for name, (data, grad) in grown.items():
            stack = self.stacks[name]
            stack.grad, stack.data = None, data
            stack.grad = grad
        self.free += range(self.capacity, 2 * self.capacity)  # still a heap: they are the largest
        self.capacity *= 2
        self.version += 1

    def entry(self, slot: int, name: str) -> int:
        """A slot's entry in one of the stacks."""
        return 0 if name in self.shared else self.entry_of[slot]

    def _add_stack(self, name: str, param: Param, device: torch.device) -> None:
        if name not in self.stacks:
            entries = 1 if param.role == "shared" else self.capacity
            zeros = torch.zeros(entries, *param.shape, dtype=torch.float32, device=device)
            self.stacks[name] = nn.Parameter(zeros, requires_grad=param.role in ("trained", "gate"))
            self.gates |= {name} if param.role == "gate" else set()
            self.shared |= {name} if param.role == "shared" else set()


def _doubled(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, torch.zeros_like(tensor)])


@dataclass(eq=False)
class Mount:
    """A group at a site."""

    site: Site
    group: Group
    names: Mapping[str, str]
    """The delta's tensor name -> the stack's."""

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The stacks under the delta's own names. They are the same objects for as long as the group lives."""
        return {name: self.group.stacks[full] for name, full in self.names.items()}

    @property
    def slots(self) -> Collection[int]:
        """The slots of the group, which are all at this site."""
        return self.group.entry_of.keys()


def is_head(kind: str) -> bool:
    """Whether this kind of site belongs to a head."""
    return kind in ("head", "head.tokens")


def stages_of(kind: str) -> tuple[str, ...]:
    """The stages of a kind of site; an adapter that is alone in its pass changes the model's own pooler."""
    return {"head": ("rows",), "head.tokens": ("tokens",), "pooler": ("layers", "rows")}.get(kind, ("layers",))
