"""Where runs sit in the bank, so that a loop that goes on runs its rows in the order they would have had.

Slots come and go and leave holes; the next run takes the lowest. The order of entries decides the order of rows in a
batch, and with it the last bits of matrix products, so a checkpoint keeps the places and resuming restores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from inlay.bank.bank import Bank

Layout = list[list[tuple[int, int]]]
"""For every slot and each of its groups: (the group's rank in the bank, the slot's entry in it)."""


def read(bank: Bank, slots: Sequence[int]) -> Layout:
    """The places of these slots."""
    rank = {group.number: i for i, group in enumerate(bank.groups.values())}
    return [[(rank[group.number], entry) for group, entry in bank.places_in_groups(slot)] for slot in slots]


def restore(bank: Bank, slots: Sequence[int], layout: Sequence[Sequence[Sequence[int]]]) -> None:
    """Move these slots to where `read` found them; other slots make way. Moments do not move along."""
    bank.move({slot: [(a, b) for a, b in places] for slot, places in zip(slots, layout, strict=True)})
