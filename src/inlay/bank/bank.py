"""The bank: the parameters of all loaded adapters, stacked by group.

A group is a bucketed delta. For each row of parameters (say `layers.0.attn.out.down`) it has one stack
[capacity, ...], and every slot in the group has one entry, the same in all its stacks. Entry 0 is zeros and
stands for "not in this group". A *mount* is a group's presence at a site: which stacks it reads there, and for
which slots. Sharing is two mounts that read the same stack; gradients add up by themselves.

Slots come and go by writing one entry in place. Capacity doubles when it is full, so neither compiled code nor
memory is touched for every new task.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from inlay.bank.delta import Delta, Method, Param, Part, params_of, penalty_of
from inlay.base.sites import Site
from inlay.errors import AdapterError, SlotError

BASE = 0
"""The slot of rows that go through the bare base."""


class Group:
    """All adapters of one bucketed delta."""

    def __init__(self, delta: Delta, device: torch.device, number: int = 0):
        self.delta = delta
        self.number = number
        self.device = device
        self.capacity = 2
        self.entry_of: dict[int, int] = {}
        self.stacks: dict[str, nn.Parameter] = {}
        self.gates: set[str] = set()
        """The stacks that hold gates."""

    def enter(self, slot: int) -> bool:
        """Give a slot an entry; True if that took new stacks."""
        taken = set(self.entry_of.values())
        free = next((e for e in range(1, self.capacity) if e not in taken), None)
        grows = free is None
        if free is None:
            free = self.capacity
            self.grow()
        self.entry_of[slot] = free
        return grows

    def leave(self, slot: int) -> None:
        """Take a slot's entry back and clear it."""
        entry = self.entry_of.pop(slot)
        with torch.no_grad():
            for stack in self.stacks.values():
                stack[entry].zero_()
                if stack.grad is not None:
                    stack.grad[entry].zero_()

    def stack(self, name: str, shape: tuple[int, ...], trained: bool) -> nn.Parameter:
        """The stack of one row, made when first asked for."""
        if name not in self.stacks:
            zeros = torch.zeros(self.capacity, *shape, dtype=torch.float32, device=self.device)
            self.stacks[name] = nn.Parameter(zeros, requires_grad=trained)
        return self.stacks[name]

    def grow(self) -> None:
        """Double the capacity: all stacks, or none if memory runs out. The bank's version must count it."""
        grown = {}
        for name, stack in self.stacks.items():
            grown[name] = _doubled(stack.data), None if stack.grad is None else _doubled(stack.grad)
        for name, (data, grad) in grown.items():
            stack = self.stacks[name]
            stack.grad, stack.data = None, data
            stack.grad = grad
        self.capacity *= 2


def _doubled(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, torch.zeros_like(tensor)])


@dataclass
class Mount:
    """A group's presence at a site."""

    site: Site
    group: Group
    names: dict[str, str]
    """The delta's tensor name -> the stack's."""
    number: int = 0
    slots: set[int] = field(default_factory=set)

    @property
    def entry_of(self) -> Mapping[int, int]:
        """The entries of the slots that are present here."""
        if self.is_whole:
            return self.group.entry_of
        return {slot: self.group.entry_of[slot] for slot in self.slots}

    @property
    def is_whole(self) -> bool:
        """Whether every slot of the group is present here, as is usual."""
        return len(self.slots) == len(self.group.entry_of)

    @property
    def route(self) -> str:
        """The name of its route in a pass: mounts of one group share it, unless one has fewer slots."""
        return f"route {self.group.number}" if self.is_whole else f"route {self.group.number} at {self.number}"

    def tensors(self) -> dict[str, Tensor]:
        """The stacks under the delta's own names."""
        return {name: self.group.stacks[full] for name, full in self.names.items()}


@dataclass
class Slot:
    """What the bank remembers of one loaded adapter."""

    parts: Sequence[Part]
    params: dict[str, Param]
    groups: dict[str, Group]
    """tensor name -> the group whose stack holds it."""
    method: Method | None = None
    start: dict[str, Tensor] = field(default_factory=dict)
    """Where mixout falls back to; empty without it."""

    @functools.cached_property
    def gated(self) -> bool:
        """Whether any of its deltas has gates."""
        return any(part.delta.gated for part in self.parts)

    @functools.cached_property
    def wants(self) -> frozenset[str]:
        """Which optional signals its deltas read."""
        return frozenset().union(*(part.delta.wants for part in self.parts))


class Bank:
    """Slots, groups and mounts."""

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.slots: dict[int, Slot] = {}
        self.groups: dict[Delta, Group] = {}
        self.mounts: dict[str, list[Mount]] = {}
        self.version = 0
        """Changes when tensors move or mounts come and go: what was recorded before no longer holds."""
        self._next = BASE + 1

    def load(
        self,
        parts: Sequence[Part],
        tensors: Mapping[str, Tensor],
        method: Method | None = None,
        start: Mapping[str, Tensor] | None = None,
    ) -> int:
        """Give an adapter a slot and copy its tensors in. If that fails, there is no trace of it but a larger capacity.

        Not between a forward and its backward: a stack may grow.
        """
        params = params_of(parts)
        for name, param in params.items():
            if name not in tensors or tuple(tensors[name].shape) != param.shape:
                found = tuple(tensors[name].shape) if name in tensors else "missing"
                raise AdapterError(f"the tensor {name} must be {param.shape}, it is {found}")
        slot, self._next = self._next, self._next + 1
        stacks = {id(group): set(group.stacks) for group in self.groups.values()}
        try:
            homes: dict[str, Group] = {}
            for part in parts:
                homes |= self._enter(slot, part)
            self.slots[slot] = Slot(parts, params, homes, method, dict(start or {}))
            self.write(slot, tensors)
        except BaseException:
            for group in self.groups.values():
                for name in group.stacks.keys() - stacks.get(id(group), set()):
                    del group.stacks[name]
            self._forget(slot)
            raise
        return slot

    def unload(self, slot: int) -> None:
        """Forget an adapter; no other is touched."""
        self.slot(slot)
        self._forget(slot)

    def _enter(self, slot: int, part: Part) -> dict[str, Group]:
        """Give a slot its places for one part: tensor name -> group."""
        delta = part.delta.bucketed()
        group = self.groups.get(delta)
        if group is None:
            self.version += 1
            group = self.groups[delta] = Group(delta, self.device, self.version)
        if slot not in group.entry_of and group.enter(slot):
            self.version += 1
        padded = delta.params(part.site)
        for name, full in part.names().items():
            group.stack(full, padded[name].shape, padded[name].role != "constant")
            group.gates |= {full} if padded[name].role == "gate" else set()
        self._mount(part.site, group, part.names()).slots.add(slot)
        return dict.fromkeys(part.names().values(), group)

    def _forget(self, slot: int) -> None:
        """Take a slot out of wherever it is, even if it has only half come in."""
        self.slots.pop(slot, None)
        for group in list(self.groups.values()):
            if slot in group.entry_of:
                group.leave(slot)
            if not group.entry_of:
                self.version += 1
                del self.groups[group.delta]
        for site, mounts in self.mounts.items():
            for mount in mounts:
                mount.slots.discard(slot)
            kept = [mount for mount in mounts if mount.slots]
            self.version += len(kept) < len(mounts)
            self.mounts[site] = kept

    def slot(self, slot: int) -> Slot:
        """The record of a slot."""
        if slot not in self.slots:
            raise SlotError(f"there is no slot {slot}; loaded: {', '.join(map(str, self.slots)) or 'none'}")
        return self.slots[slot]

    def entry(self, slot: int, name: str) -> tuple[nn.Parameter, tuple[int | slice, ...]]:
        """The stack that holds a tensor, and the index of the tensor in it, at its true size."""
        record = self.slot(slot)
        group = record.groups[name]
        true_size: list[int | slice] = [slice(0, n) for n in record.params[name].shape]
        index = (group.entry_of[slot], *true_size)
        return group.stacks[name], index

    def write(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite an adapter's tensors in place; those that are not given stay."""
        with torch.no_grad():
            for name in self.slot(slot).params.keys() & tensors.keys():
                stack, index = self.entry(slot, name)
                stack[index] = tensors[name].to(stack.device, stack.dtype)

    def read(self, slot: int, device: str | None = None) -> dict[str, Tensor]:
        """A copy of an adapter's tensors at their true sizes, where they are or on a device."""
        places = {name: self.entry(slot, name) for name in self.slot(slot).params}
        return {name: stack[index].detach().to(device, copy=True) for name, (stack, index) in places.items()}

    def gradients(self, slot: int) -> dict[str, Tensor | None]:
        """An adapter's gradients at their true sizes; None where a stack has none."""
        out: dict[str, Tensor | None] = {}
        for name, param in self.slot(slot).params.items():
            stack, index = self.entry(slot, name)
            if param.role != "constant":
                out[name] = None if stack.grad is None else stack.grad[index].clone()
        return out

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every trained stack."""
        for group in self.groups.values():
            yield from (stack for stack in group.stacks.values() if stack.requires_grad)

    def penalty(self, slot: int) -> Tensor | None:
        """What gates add to a slot's loss; shared gates count once. None without gates."""
        record = self.slot(slot)
        if not any(part.delta.gated for part in record.parts):
            return None
        return penalty_of(record.parts, {n: s[i] for n in record.params for s, i in (self.entry(slot, n),)})

    def order(self, slot: int) -> tuple[int, int]:
        """Sort key of a slot: its main group's adapters together, in the order of their entries."""
        if slot == BASE:
            return (-1, 0)
        first = next(iter(self.slot(slot).groups.values()), None)
        if first is None:  # a weight-level adapter without a head has nothing here
            return (len(self.groups), slot)
        return (list(self.groups.values()).index(first), first.entry_of[slot])

    def _mount(self, site: Site, group: Group, names: dict[str, str]) -> Mount:
        mounts = self.mounts.setdefault(site.name, [])
        for mount in mounts:
            if mount.group is group and mount.names == names:
                return mount
        self.version += 1
        mounts.append(Mount(site, group, names, self.version))
        return mounts[-1]
