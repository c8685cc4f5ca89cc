"""The forward pass: hidden states out, no labels. There is one in the code base, and this is it.

Rows are sorted by slot. All banked rows and bare base rows run in one pass; a weight-level adapter's rows, and
those of an adapter that must be alone in its pass (DeBERTa's shared keys), run in one pass each. The model sees
packed tokens where its attention allows it, else padded rows; results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.bank.bank import BASE, Bank
from inlay.bank.noise import Keys
from inlay.bank.passes import BankPass, Reached
from inlay.bank.route import Segments
from inlay.bank.weights import WeightSlot, call_with
from inlay.bank.wiring import Wiring
from inlay.base.attention import Rows
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Batch
from inlay.errors import InlayError, SlotError


@dataclass(frozen=True)
class Hidden:
    """The last hidden states of a batch, in the order the rows were run."""

    states: Tensor
    """[tokens, d]"""
    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    order: tuple[int, ...]
    """The place of each row in the batch that was asked for."""

    def rows(self) -> list[Tensor]:
        """[length, d] of every row, in the batch's own order."""
        return in_order(torch.split(self.states, list(self.lengths)), self.order)


def in_order(rows: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """Put rows back to where they came from."""
    out = list(rows)
    for row, place in zip(rows, order, strict=True):
        out[place] = row
    return out


class Forward:
    """A base with its wiring, a bank and weight-level slots: everything a forward pass needs."""

    def __init__(self, base: Base):
        self.base = base
        self.wiring = Wiring(base.model, base.sites)
        self.bank = Bank(base.device)
        self.weights: dict[int, WeightSlot] = {}
        """Weight-level adapters by slot; their heads are in the bank under the same number."""

    def __call__(
        self, batch: Batch, slots: Sequence[int], keys: Keys | None = None, packed: bool | None = None
    ) -> Hidden:
        """
        Args:
            slots: the slot of every row; 0 is the bare base.
            keys: given, the slots in it run in training mode with their own noise.
            packed: None packs where the architecture can.
        """
        self._check(batch, slots, keys, packed)
        packed = self.base.sites.arch.packable if packed is None else packed
        plan = self._plan(slots)
        states, order = [], []
        for rows in plan:
            states.append(self._run(batch.take(rows), [slots[i] for i in rows], keys, packed))
            order += rows
        lengths = tuple(batch.lengths[i] for i in order)
        joined = states[0] if len(states) == 1 else torch.cat(states)
        return Hidden(joined, lengths, tuple(slots[i] for i in order), tuple(order))

    @torch.no_grad()
    def below(self, batch: Batch, layer: int) -> Tensor:
        """[tokens, d]: what goes into a layer when nothing below it is adapted; see `Batch.states`."""
        self._check(batch, [BASE] * len(batch.lengths), None, True)
        inputs, _, _ = packed_inputs(self.base, batch)
        state = BankPass(self.bank, Segments([BASE], [int(batch.ids.numel())]), None, frozenset())
        state.stop = layer
        try:
            with self.wiring.running(state):
                self.base.model(**inputs)
        except Reached as reached:
            return reached.states[0]
        raise InlayError(f"{self.base.name} has no layer {layer}")

    def lowest(self, slot: int) -> int:
        """The lowest layer whose input an adapter leaves as the base has it; 0 if it must see all layers."""
        sites = self.base.sites
        record = self.bank.slot(slot)
        outside = ("pooler", "final.norm", "head", "head.tokens")
        layers = [0 if "hidden" in record.wants else sites.layers]
        layers += [part.site.layer or 0 for part in record.parts if part.site.kind not in outside]
        if slot in self.weights:
            above = [site.path for site in sites if site.kind in outside]
            for name in self.weights[slot].method.targets(sites):
                if not name.startswith(tuple(f"{path}." for path in above)):
                    inside = (i for i, path in enumerate(sites.layer_paths) if name.startswith(f"{path}."))
                    layers.append(next(inside, 0))
        return min(layers) if sites.depth == sites.layers else 0

    def _plan(self, slots: Sequence[int]) -> list[list[int]]:
        """Which rows run together: a list of passes, each a list of row numbers sorted by slot."""
        key = {slot: self.bank.order(slot) for slot in set(slots)}
        rows = sorted(range(len(slots)), key=lambda i: key[slots[i]])
        together = [i for i in rows if not self._alone(slots[i])]
        alone: dict[int, list[int]] = {}
        for i in rows:
            if self._alone(slots[i]):
                alone.setdefault(slots[i], []).append(i)
        return ([together] if together else []) + list(alone.values())

    def _alone(self, slot: int) -> bool:
        if slot == BASE or slot in self.weights:
            return slot in self.weights
        special = self.base.sites.single_slot
        return bool(special) and any(part.site.kind in special for part in self.bank.slot(slot).parts)

    def _run(self, batch: Batch, slots: Sequence[int], keys: Keys | None, packed: bool) -> Tensor:
        inputs, valid, width = (packed_inputs if packed else padded_inputs)(self.base, batch)
        true = Segments(slots, batch.lengths)
        segments = true if valid is None else Segments(slots, [width] * len(slots))
        alone = self._alone(slots[0])
        state = BankPass(self.bank, segments, keys, self.without_dropout(keys), true, valid, alone)
        if slots[0] in self.weights:
            state.weights = self.weights[slots[0]].effective(self.base, slots[0], keys)
        if batch.states is not None:
            state.begin = batch.layer, batch.states.unsqueeze(0).to(self.base.device)
        model = self.base.model
        with self.wiring.running(state):
            out = call_with(state.weights, model, model.forward, (), inputs)
        states: Tensor = out.last_hidden_state.flatten(0, 1)
        return states if valid is None else states[valid]

    def without_dropout(self, keys: Keys | None) -> frozenset[int]:
        """The slots in training that have none, or mixout instead."""
        if keys is None:
            return frozenset()
        methods = {slot: self.bank.slot(slot).method for slot in keys.of_slot}
        return keys.without_dropout.union(
            slot for slot, method in methods.items() if method is not None and method.mixout
        )

    def _check(self, batch: Batch, slots: Sequence[int], keys: Keys | None, packed: bool | None) -> None:
        if len(slots) != len(batch.lengths):
            raise SlotError(f"the batch has {len(batch.lengths)} rows but {len(slots)} slots were given")
        if batch.states is not None and (packed is False or not self.base.sites.arch.packable):
            raise InlayError("a batch that begins at a later layer must be packed")
        if batch.states is not None and any(batch.layer > self.lowest(slot) for slot in set(slots) - {BASE}):
            raise SlotError(f"this batch begins at layer {batch.layer}, but an adapter in it changes a lower one")
        if packed and not self.base.sites.arch.packable:
            raise InlayError(f"{self.base.sites.arch.model_type} cannot run packed batches")
        stale = [slot for slot in (keys.of_slot if keys else ()) if slot not in self.bank.slots]
        if stale:
            raise SlotError("these keys name an adapter that has been unloaded; make them anew")
        vocabulary = int(config_of(self.base.model).vocab_size)
        lowest, highest = torch.aminmax(batch.ids)
        if not 0 <= int(lowest) <= int(highest) < vocabulary:
            raise InlayError(f"the batch has token ids outside the base's vocabulary of {vocabulary}")
        limit = longest_row(self.base)
        longest = max(batch.lengths)
        if limit is not None and longest > limit:
            raise InlayError(f"row {batch.lengths.index(longest)} has {longest} tokens, {self.base.name} takes {limit}")


def longest_row(base: Base) -> int | None:
    """The most tokens a row may have; None where positions are only relative."""
    config = config_of(base.model)
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or getattr(config, "position_biased_input", True) is False:
        return None
    return int(limit) - _first_position(base)


def packed_inputs(base: Base, batch: Batch) -> tuple[dict[str, Any], None, int]:
    """One [1, tokens] row, with the true row boundaries for attention."""
    device = base.device
    lengths = torch.tensor(batch.lengths)
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    steps = torch.arange(len(starts)) - starts + _first_position(base)
    inputs = {
        "input_ids": batch.ids.unsqueeze(0).to(device),
        "position_ids": steps.unsqueeze(0).to(device),
        # four dimensions: taken as a finished mask, so none is built; packed attention does not read it
        "attention_mask": torch.zeros(1, 1, 1, 1, device=device, dtype=base.dtype),
        "inlay_rows": Rows(batch.lengths, device),
    }
    return inputs | _extras(base, batch.types, batch.ids, (1, -1)), None, 0


def padded_inputs(base: Base, batch: Batch) -> tuple[dict[str, Any], Tensor, int]:
    """[rows, longest] with a mask, and where the true tokens are in it."""
    device = base.device
    lengths = torch.tensor(batch.lengths).unsqueeze(1)
    width = int(lengths.max())
    steps = torch.arange(width).unsqueeze(0)
    mask = steps < lengths
    padding = getattr(config_of(base.model), "pad_token_id", None) or 0
    ids = torch.full(mask.shape, padding)
    ids[mask] = batch.ids
    types = None
    if batch.types is not None:
        types = torch.zeros_like(ids)
        types[mask] = batch.types
    inputs = {
        "input_ids": ids.to(device),
        "position_ids": (steps + _first_position(base)).expand_as(ids).to(device),
        "attention_mask": mask.to(device=device, dtype=torch.long),
    }
    valid = mask.flatten().nonzero().squeeze(1).to(device)
    return inputs | _extras(base, types, ids, ids.shape), valid, width


def _extras(base: Base, types: Tensor | None, ids: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    arch = base.sites.arch
    extras: dict[str, Any] = {"use_cache": False} if arch.decoder else {}
    if arch.token_types:
        extras["token_type_ids"] = (torch.zeros_like(ids) if types is None else types).view(shape).to(base.device)
    return extras


def _first_position(base: Base) -> int:
    if base.sites.arch.first_position == "zero":
        return 0
    return int(config_of(base.model).pad_token_id) + 1
