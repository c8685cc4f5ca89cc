"""Where runs sit in the bank, so that a loop that goes on runs its rows in the order they would have had.

Slots come and go and leave holes; the next run takes the lowest. The order of entries decides the order of rows in a
batch, and with it the last bits of matrix products, so a checkpoint keeps the places and resuming restores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from inlay.bank.bank import Bank, Group

Layout = list[list[tuple[int, int]]]
"""For every slot and each of its groups: (the group's rank in the bank, the slot's entry in it)."""


def read(bank: Bank, slots: Sequence[int]) -> Layout:
    """The places of these slots."""
    rank = {id(group): i for i, group in enumerate(bank.groups.values())}
    return [[(rank[id(g)], g.entry_of[slot]) for g in _groups(bank, slot)] for slot in slots]


def restore(bank: Bank, slots: Sequence[int], layout: Sequence[Sequence[Sequence[int]]]) -> None:
    """Move these slots to where `read` found them; other slots make way. Moments do not move along."""
    ranks: dict[int, int] = {}
    wanted: dict[int, tuple[Group, dict[int, int]]] = {}
    for slot, places in zip(slots, layout, strict=True):
        for group, (rank, entry) in zip(_groups(bank, slot), places, strict=True):
            ranks[id(group)] = rank
            wanted.setdefault(id(group), (group, {}))[1][slot] = entry
    bank.version += 1  # a recorded step knows its entries
    for group, entries in wanted.values():
        _move(group, entries)
    last = len(bank.groups) + max(ranks.values(), default=0)
    bank.groups = dict(sorted(bank.groups.items(), key=lambda item: ranks.get(id(item[1]), last)))


def _groups(bank: Bank, slot: int) -> list[Group]:
    return list({id(g): g for g in bank.slot(slot).groups.values()}.values())


def _move(group: Group, entries: Mapping[int, int]) -> None:
    before = dict(group.entry_of)
    while group.capacity <= max(entries.values()):
        group.grow()
    free = (e for e in range(1, group.capacity) if e not in entries.values())
    group.entry_of = {slot: entries[slot] if slot in entries else next(free) for slot in before}
    with torch.no_grad():
        for stack in group.stacks.values():
            moved = torch.zeros_like(stack)
            moved[list(group.entry_of.values())] = stack[list(before.values())]
            stack.copy_(moved)
