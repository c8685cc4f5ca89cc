"""The bank: the parameters of all loaded adapters, stacked by group.

A group is every adapter with the same bucketed delta at the same sites, whatever their true sizes. For each row of
parameters (say `layers.0.attn.out.down`) it has one stack [capacity, ...], and every slot in the group has one entry,
the same in all its stacks. Entry 0 is zeros and means "not in this group". A *mount* is a group at a site: which stacks
it reads there. Sharing is two mounts that read the same stack; gradients add up by themselves.

Slots come and go by writing one entry in place. Capacity doubles when it is full, so neither compiled code nor memory
is touched for every new task. A weight-level adapter has tensors of its own beside the stacks; only the forward pass
needs to know which of the two a slot has.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from inlay.bank.delta import Delta, Method, Param, Part, WeightMethod, params_of, penalty_of
from inlay.bank.group import Group, GroupKey, Mount, is_head, stages_of
from inlay.bank.weights import WeightSlot
from inlay.data.batch import Array
from inlay.errors import AdapterError, SlotError

BASE = 0
"""The slot of rows that go through the bare base."""
STAGES = ("layers", "rows", "tokens")
"""Where a group acts: inside the model, on pooled rows, on the last states of all tokens."""
_LAST = 2**62
"""The rank of slots that have nothing in the bank."""


class Place(NamedTuple):
    """Where a tensor of a slot is, at its true size."""

    stack: Tensor
    at: tuple[Any, ...]

    @property
    def tensor(self) -> Tensor:
        """A view."""
        return self.stack[self.at]


class Trained(NamedTuple):
    """Tensors that train together."""

    tensors: dict[str, nn.Parameter]
    entries: list[int] | None
    """Which of their entries belong to `slots`; None where all of every tensor is one slot's."""
    slots: list[int]
    are_gates: bool


@dataclass(eq=False)
class Slot:
    """What the bank knows of one loaded adapter."""

    parts: Sequence[Part]
    params: dict[str, Param]
    groups: dict[str, Group]
    """tensor name -> the group whose stack holds it."""
    head: Group | None
    """The group of its head, which may have no tensors; None without a head."""
    method: Method | None = None
    start: dict[str, Tensor] = field(default_factory=dict)
    """Where mixout falls back to; empty without it."""
    weights: WeightSlot | None = None
    """Its own tensors, where it changes the base's weights."""
    alone: bool = False
    """Whether its rows cannot share a pass."""

    @functools.cached_property
    def has_gates(self) -> bool:
        """Whether any of its tensors are gates."""
        if self.weights is not None:
            return any(map(is_gate, self.weights.tensors))
        return any(part.delta.gated for part in self.parts)

    @functools.cached_property
    def wants(self) -> frozenset[str]:
        """Which optional signals its deltas read."""
        return frozenset().union(*(part.delta.wants for part in self.parts))

    @property
    def draws(self) -> bool:
        """Whether a pass in training draws numbers for its parameters, and so differs from any other."""
        return bool(self.start) or (self.weights is not None and self.weights.method.draws(self.weights.tensors))

    @functools.cached_property
    def without_dropout(self) -> bool:
        """Whether it trains without dropout: mixout replaces it."""
        return self.method is not None and bool(self.method.mixout)


class Bank:
    """Slots, groups and mounts."""

    def __init__(self, device: torch.device | str = "cpu", single_slot: Collection[str] = ()):
        """
        Args:
            single_slot: kinds of sites that serve one slot at a time.
        """
        self.device = torch.device(device)
        self.slots: dict[int, Slot] = {}
        self.groups: dict[GroupKey, Group] = {}
        self.mounts: dict[str, list[Mount]] = {}
        self.changes = 0
        """How many times a slot was loaded, unloaded or moved."""
        self.ranks: dict[int, int] = {BASE: -1}
        """Rows are sorted by their slots' ranks: a group's adapters together, in the order of their entries."""
        self.columns: dict[int, int] = {BASE: 0}
        """slot -> its column in the table of entries."""
        self.special: set[int] = set()
        """Slots that planning treats specially: those alone in their pass, and those whose parameters are drawn."""
        self._single_slot = frozenset(single_slot)
        self._next = itertools.count(BASE + 1)
        self._next_group = itertools.count(1)
        self._of_row: dict[int, Group] = {}
        self._free_rows: list[int] = []
        self._free_columns: list[int] = []
        self._entries = np.zeros((0, 1), dtype=np.int32)
        """[rows of groups, columns of slots] the entry of every slot in every group; 0 where it is not in it."""
        self._stages = np.zeros((len(STAGES), 0), dtype=bool)
        """[stages, rows of groups] where a group acts."""

    def load(
        self,
        parts: Sequence[Part],
        tensors: Mapping[str, Tensor],
        method: Method | None = None,
        start: Mapping[str, Tensor] | None = None,
    ) -> int:
        """Give an adapter a slot and copy its tensors in. A failure leaves no trace but a larger capacity.

        Do not call it between a forward and its backward: a stack may grow.

        Args:
            parts: what is stacked; of a weight-level method only the head.
            start: where mixout falls back to.
        """
        params = params_of(parts)
        for name, param in params.items():
            _refuse_other_shape(name, tensors.get(name), param.shape)
        weights = None
        if isinstance(method, WeightMethod):
            changes = {name: tensor for name, tensor in tensors.items() if name not in params}
            weights = WeightSlot.load(method, changes, self.device)
        slot = next(self._next)
        alone = weights is not None or any(part.site.kind in self._single_slot for part in parts)
        try:
            homes, head = self._enter(slot, parts, params)
            self.slots[slot] = record = Slot(parts, params, homes, head, method, dict(start or {}), weights, alone)
            self.columns[slot] = self._free_column()
            if alone or record.has_gates or record.start:
                self.special.add(slot)
            self._note_places([slot])
            self.write(slot, {name: tensors[name] for name in params})
        except BaseException:
            self._forget(slot)
            raise
        self.changes += 1
        return slot

    def unload(self, slot: int) -> None:
        """Forget an adapter; no other is touched."""
        self.slot(slot)
        self._forget(slot)

    def slot(self, slot: int) -> Slot:
        """The record of a slot."""
        if slot not in self.slots:
            raise SlotError(f"there is no slot {slot}; loaded: {', '.join(map(str, self.slots)) or 'none'}")
        return self.slots[slot]

    def place(self, slot: int, name: str) -> Place:
        """Where a tensor of a slot is."""
        return self._place(slot, self.slot(slot), name)

    def places(self, slot: int) -> dict[str, Place]:
        """Where all tensors of a slot are."""
        record = self.slot(slot)
        places = {name: self._place(slot, record, name) for name in record.params}
        if record.weights is not None:
            places |= {name: Place(tensor, (...,)) for name, tensor in record.weights.tensors.items()}
        return places

    def write(self, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite these tensors of an adapter in place; its others stay, and so do all if one does not fit."""
        places, params = self.places(slot), self.slots[slot].params
        for name, tensor in sorted(tensors.items()):
            if name not in places:
                raise SlotError(f"there is no tensor {name!r} in slot {slot}")
            stack = places[name].stack
            _refuse_other_shape(name, tensor, params[name].shape if name in params else tuple(stack.shape))
            if self._has_others(slot, name) and not torch.equal(places[name].tensor, tensor.to(stack)):
                raise SlotError(f"{name} is shared with other adapters, which have other numbers there")
        with torch.no_grad():
            for name, tensor in tensors.items():
                stack, at = places[name]
                stack[at] = tensor.to(stack.device, stack.dtype)

    def read(self, slot: int, device: str | None = None) -> dict[str, Tensor]:
        """A copy of an adapter's tensors at their true sizes, where they are or on a device."""
        return {name: place.tensor.detach().to(device, copy=True) for name, place in self.places(slot).items()}

    def gradients(self, slot: int) -> dict[str, Tensor | None]:
        """An adapter's gradients at their true sizes; None where a stack has none."""
        return {
            name: None if stack.grad is None else stack.grad[at].clone()
            for name, (stack, at) in self.places(slot).items()
            if stack.requires_grad
        }

    def parameters(self) -> Iterator[nn.Parameter]:
        """Everything that trains: stacks, and the tensors of weight-level adapters."""
        for group in self.groups.values():
            yield from (stack for stack in group.stacks.values() if stack.requires_grad)
        for slot in self.slots.values():
            if slot.weights is not None:
                yield from slot.weights.parameters()

    def trained(self, slots: Collection[int]) -> list[Trained]:
        """Everything of these slots that trains: the groups' stacks, then the tensors of weight-level adapters."""
        trained: list[Trained] = []
        for group in self.groups.values():
            members = sorted((entry, slot) for slot, entry in group.entry_of.items() if slot in slots)
            for gates in (False, True):
                stacks = {n: s for n, s in group.stacks.items() if s.requires_grad and (n in group.gates) == gates}
                if members and stacks:
                    trained.append(Trained(stacks, [entry for entry, _ in members], [s for _, s in members], gates))
        for slot in sorted(slots):
            weights = self.slot(slot).weights
            if weights is None:
                continue
            parameters = {n: t for n, t in weights.tensors.items() if isinstance(t, nn.Parameter)}
            for gates in (False, True):
                tensors = {n: t for n, t in parameters.items() if is_gate(n) == gates}
                if tensors:
                    trained.append(Trained(tensors, None, [slot], gates))
        return trained

    def penalty(self, slot: int) -> Tensor | None:
        """What gates add to a slot's loss; shared gates count once. None without gates."""
        record = self.slot(slot)
        if record.weights is not None:
            return record.weights.method.penalty(record.weights.tensors)
        if not record.has_gates:
            return None
        return penalty_of(record.parts, {name: place.tensor for name, place in self.places(slot).items()})

    def entries(self, slots: Sequence[int]) -> Array:
        """[rows of groups, slots] the entry of every slot in every group; 0 where it is not in it."""
        columns = self.columns
        return self._entries[:, [columns[slot] for slot in slots]]

    def acting(self, entries: Array, stage: str) -> tuple[list[Group], Array]:
        """The groups that act at a stage for slots with these entries, and their rows of them: [groups, slots]."""
        (rows,) = (entries.any(1) & self._stages[STAGES.index(stage)]).nonzero()
        return [self._of_row[row] for row in rows.tolist()], entries[rows]

    def places_in_groups(self, slot: int) -> list[tuple[Group, int]]:
        """A slot's groups, and its entry in each."""
        record = self.slot(slot)
        groups = [*record.groups.values(), *([] if record.head is None else [record.head])]
        return [(group, group.entry_of[slot]) for group in dict.fromkeys(groups)]

    def move(self, positions: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Put slots back where `places_in_groups` found them; other slots make way.

        Args:
            positions: slot -> for each of its groups (the group's rank among all, the slot's entry).
        """
        ranks: dict[int, int] = {}
        entries: dict[int, dict[int, int]] = {}
        for slot, places in positions.items():
            for (group, _), (rank, entry) in zip(self.places_in_groups(slot), places, strict=True):
                ranks[group.row] = rank
                entries.setdefault(group.row, {})[slot] = entry
        last = len(self.groups) + max(ranks.values(), default=0)
        self.groups = dict(sorted(self.groups.items(), key=lambda item: ranks.get(item[1].row, last)))
        for group in self.groups.values():
            group.number = next(self._next_group)
            if group.row in entries:
                self._move(group, entries[group.row])
        self._note_places(self.slots)
        self.changes += 1

    def _move(self, group: Group, entries: Mapping[int, int]) -> None:
        before = dict(group.entry_of)
        while group.capacity <= max(entries.values()):
            group.grow()
        taken = set(entries.values())
        group.free = [entry for entry in range(1, group.capacity) if entry not in taken]
        group.entry_of = {s: entries[s] if s in entries else heapq.heappop(group.free) for s in before}
        with torch.no_grad():
            for stack in (stack for name, stack in group.stacks.items() if name not in group.shared):
                moved = torch.zeros_like(stack)
                moved[list(group.entry_of.values())] = stack[list(before.values())]
                stack.copy_(moved)

    def _note_places(self, slots: Iterable[int]) -> None:
        """Note the entries and the ranks of slots, for planning."""
        for slot in slots:
            places = self.places_in_groups(slot)
            for group, entry in places:
                self._entries[group.row, self.columns[slot]] = entry
            # a weight-level adapter without a head has no place
            self.ranks[slot] = (places[0][0].number << 32) + places[0][1] if places else _LAST + slot

    def _has_others(self, slot: int, name: str) -> bool:
        """Whether a slot shares a tensor with other slots."""
        group = self.slots[slot].groups.get(name)
        return group is not None and name in group.shared and len(group.entry_of) > 1

    def _place(self, slot: int, record: Slot, name: str) -> Place:
        group, shape = record.groups[name], record.params[name].shape
        stack = group.stacks[name]
        true_size = [] if stack.shape[1:] == shape else [slice(0, n) for n in shape]
        return Place(stack, (group.entry(slot, name), *true_size))

    def _enter(self, slot: int, parts: Sequence[Part], params: Iterable[str]) -> tuple[dict[str, Group], Group | None]:
        """Give a slot its entries: tensor name -> group, and the group of its head."""
        parts_of_delta: dict[Delta, list[Part]] = {}
        for part in parts:
            parts_of_delta.setdefault(part.delta.bucketed(), []).append(part)
        homes: dict[str, Group] = {}
        head: Group | None = None
        for delta, group_parts in parts_of_delta.items():
            key = delta, tuple((part.site.name, tuple(part.names().items())) for part in group_parts)
            group = self.groups.get(key)
            if group is None:
                group = Group(key, group_parts, self.device, next(self._next_group))
                self._add(group)
            group.enter(slot)
            homes |= {full: group for part in group_parts for full in part.names().values()}
            head = group if any(is_head(part.site.kind) for part in group_parts) else head
        return {name: homes[name] for name in params}, head

    def _add(self, group: Group) -> None:
        group.row = self._free_row()
        self.groups[group.key] = self._of_row[group.row] = group
        stages = {stage for mount in group.mounts for stage in stages_of(mount.site.kind)}
        self._stages[:, group.row] = [stage in stages for stage in STAGES]
        for mount in group.mounts:
            self.mounts.setdefault(mount.site.name, []).append(mount)

    def _forget(self, slot: int) -> None:
        """Remove every trace of a slot, even of one whose loading failed halfway."""
        self.changes += 1
        self.slots.pop(slot, None)
        self.ranks.pop(slot, None)
        self.special.discard(slot)
        if (column := self.columns.pop(slot, None)) is not None:
            self._entries[:, column] = 0
            heapq.heappush(self._free_columns, column)
        for group in [group for group in self.groups.values() if slot in group.entry_of]:
            group.leave(slot)
        for key, group in [(key, group) for key, group in self.groups.items() if not group.entry_of]:
            del self.groups[key]
            self._stages[:, group.row] = False
            del self._of_row[group.row]
            heapq.heappush(self._free_rows, group.row)
            for site in {mount.site.name for mount in group.mounts}:
                self.mounts[site] = [mount for mount in self.mounts[site] if mount.group is not group]

    def _free_column(self) -> int:
        """A column that no slot has; column 0 is the base's."""
        if not self._free_columns:
            count = self._entries.shape[1]
            self._free_columns += range(count, 2 * count)
            self._entries = np.pad(self._entries, ((0, 0), (0, count)))
        return heapq.heappop(self._free_columns)

    def _free_row(self) -> int:
        if not self._free_rows:
            count = len(self._entries)
            self._free_rows += range(count, 2 * count + 4)
            self._entries = np.pad(self._entries, ((0, count + 4), (0, 0)))
            self._stages = np.pad(self._stages, ((0, 0), (0, count + 4)))
        return heapq.heappop(self._free_rows)


def _refuse_other_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    actual = "missing" if tensor is None else tuple(tensor.shape)
    if actual != shape:
        raise AdapterError(f"the tensor {name} must be {shape}, it is {actual}")


def is_gate(name: str) -> bool:
    """Whether a weight-level adapter's tensor is a gate."""
    return name.endswith(".gate")
