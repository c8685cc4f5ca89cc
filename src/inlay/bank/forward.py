"""The forward pass: hidden states out, no labels. There is one in the code base, and this is it.

Rows are sorted by slot. All banked rows and bare base rows run in one pass; a weight-level adapter's rows, and
those of an adapter that must be alone in its pass (DeBERTa's shared keys), run in one pass each. The model sees
packed tokens where its attention allows it, else padded rows; results are the same.

A pass is planned on the host (`plan`: who goes where, and all numbers in tables) and run on the device (`run`: nothing
but tensors), so that a run can be recorded and replayed with other numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.bank.bank import BASE, Bank
from inlay.bank.inputs import Layout, longest_row, packed_layout, padded_layout
from inlay.bank.noise import Keys
from inlay.bank.ops import has_kernels
from inlay.bank.passes import BankPass, Pass, Reached, kernel_tables, noise_tables
from inlay.bank.route import Segments
from inlay.bank.tables import Tables, bucket
from inlay.bank.weights import WeightSlot, call_with
from inlay.bank.wiring import Wiring
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Batch
from inlay.errors import InlayError, SlotError


@dataclass(frozen=True)
class Hidden:
    """The last hidden states of a batch, in the order the rows were run."""

    states: Tensor
    """[tokens, d]; there may be more tokens at the end, which belong to no row."""
    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    order: tuple[int, ...]
    """The place of each row in the batch that was asked for."""

    def rows(self) -> list[Tensor]:
        """[length, d] of every row, in the batch's own order."""
        return in_order(torch.split(self.states[: sum(self.lengths)], list(self.lengths)), self.order)


def in_order(rows: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """Put rows back to where they came from."""
    out = list(rows)
    for row, place in zip(rows, order, strict=True):
        out[place] = row
    return out


@dataclass(frozen=True)
class Plan:
    """One pass over some rows of a batch, before it runs."""

    rows: Sequence[int]
    """Which rows of the batch, sorted by slot."""
    slots: Sequence[int]
    lengths: Sequence[int]
    layout: Layout
    segments: Segments
    """Slots over the tokens the model sees."""
    tables: Mapping[str, Tensor]
    keys: Keys | None
    alone: bool
    begin: tuple[int, Tensor] | None


class Forward:
    """A base with its wiring, a bank and weight-level slots: everything a forward pass needs."""

    def __init__(self, base: Base):
        self.base = base
        # on the CPU one product gains nothing (MKL), and three keep weight-level adapters equal to the last bit
        fuse = base.sites.arch.packable and (base.device.type == "cuda" or bool(base.products))
        self.wiring = Wiring(base.model, base.sites, fuse=fuse, own=base.products)
        self.bank = Bank(base.device)
        self.weights: dict[int, WeightSlot] = {}
        """Weight-level adapters by slot; their heads are in the bank under the same number."""
        self.compiled = False
        """Run layers as compiled code; CUDA alone."""
        self.kernels = has_kernels(base.device)
        """Whether routes are tensors for kernels; False also turns them off."""
        self._sites = [site.name for site in base.sites] + ["output"]

    def plan(self, batch: Batch, slots: Sequence[int], keys: Keys | None, packed: bool | None = None) -> list[Plan]:
        """The passes of a batch.

        Args:
            slots: the slot of every row; 0 is the bare base.
            keys: given, the slots in it run in training mode with their own noise.
            packed: None packs where the architecture can.
        """
        self._check(batch, slots, keys, packed)
        packed = self.base.sites.arch.packable if packed is None else packed
        return [self._plan(batch, rows, slots, keys, packed) for rows in self._passes(slots)]

    def run(self, plan: Plan, tables: Mapping[str, Tensor]) -> Tensor:
        """[tokens, d]: one pass, with its tables on the device."""
        states = self.call(self.state(plan, tables), plan.layout.inputs(self.base, tables))
        return states if "valid" not in tables else states[tables["valid"]]

    def call(self, state: Pass, inputs: Mapping[str, Any]) -> Tensor:
        """[tokens, d]: the model under a pass, with its own arguments; the states of padding are there too."""
        model = self.base.model
        with self.wiring.running(state):
            out = call_with(state.weights, model, model.forward, (), inputs)
        states: Tensor = out.last_hidden_state.flatten(0, 1)
        return states

    def state(self, plan: Plan, tables: Mapping[str, Tensor]) -> BankPass:
        """The pass that a plan means."""
        state = BankPass(self.bank, plan.segments, plan.keys, tables, plan.alone)
        slot = plan.slots[0]
        if slot in self.weights:
            state.weights = self.weights[slot].effective(self.base, slot, plan.keys)
        if plan.begin is not None:
            state.begin = plan.begin[0], plan.begin[1].unsqueeze(0).to(self.base.device)
        as_it_is = state.wants or state.weights or self.wiring.checkpointing
        state.compiled = self.compiled and self.fixed(plan) and not as_it_is
        if state.compiled:
            self._say_what_varies(tables)
        return state

    def _say_what_varies(self, tables: Mapping[str, Tensor]) -> None:
        """To the compiler: the sizes of a batch and of stacks, so that it need not learn them by compiling again."""
        stacks = (stack for group in self.bank.groups.values() for stack in group.stacks.values())
        for tensor in itertools.chain(tables.values(), stacks):
            torch._dynamo.mark_dynamic(tensor, 0)

    def fixed(self, plan: Plan) -> bool:
        """Whether a run depends on the tables alone, so that it can be recorded."""
        slots = [self.bank.slots[slot] for slot in set(plan.slots) - {BASE}]
        weights = self.weights.get(plan.slots[0]) if plan.alone else None
        draws = any(slot.start for slot in slots) or (weights is not None and weights.method.draws(weights.tensors))
        gated = any(slot.gated for slot in slots)
        special = plan.alone and weights is None
        varies = (plan.keys is not None and draws) or gated or special or plan.begin is not None
        return self.kernels and not varies and plan.layout.is_fixed

    @torch.no_grad()
    def below(self, batch: Batch, layer: int) -> Tensor:
        """[tokens, d]: what goes into a layer when nothing below it is adapted; see `Batch.states`."""
        (plan,) = self.plan(batch, [BASE] * len(batch.lengths), None, True)
        tables = Tables(plan.tables).to(self.base.device)
        state = self.state(plan, tables)
        state.stop = layer
        try:
            with self.wiring.running(state):
                self.base.model(**plan.layout.inputs(self.base, tables))
        except Reached as reached:
            return reached.states[0][: len(batch.ids)]
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

    def without_dropout(self, keys: Keys) -> frozenset[int]:
        """The slots in training that have none, or mixout instead."""
        methods = {slot: self.bank.slot(slot).method for slot in keys.of_slot}
        return keys.without_dropout.union(
            slot for slot, method in methods.items() if method is not None and method.mixout
        )

    def tables(self, segments: Segments, keys: Keys | None, size: int, at: Sequence[str]) -> dict[str, Tensor]:
        """Who owns what, for noise and for kernels: of a pass's tokens, of pooled rows, of all states.

        Args:
            segments: who owns which of `size` tokens.
            at: the sites that will be asked about.
        """
        found: dict[str, Tensor] = {}
        if keys is not None:
            found |= noise_tables(segments, keys, self.without_dropout(keys), size)
        if self.kernels:
            found |= kernel_tables(self.bank, segments, size, bucket(len(segments.runs), 4), at)
        return found

    def _plan(self, batch: Batch, rows: Sequence[int], slots: Sequence[int], keys: Keys | None, packed: bool) -> Plan:
        own, some = [slots[i] for i in rows], batch.take(rows)
        alone = self._alone(own[0])
        if packed:
            layout = packed_layout(self.base, some, self.kernels, roomy=self.kernels and batch.states is None)
        else:
            layout = padded_layout(self.base, some)
        segments = Segments(own, layout.counts)
        tables = layout.tables | self.tables(segments, None, layout.tokens, () if alone else self._sites)
        if alone:
            tables.pop("bounds", None)
        if keys is not None:
            size, true = (layout.tokens, segments) if packed else (len(some.ids), Segments(own, some.lengths))
            noise = noise_tables(true, keys, self.without_dropout(keys), size)
            tables |= noise if packed else {name: layout.spread(table, -1) for name, table in noise.items()}
        begin = None if some.states is None else (some.layer, some.states)
        return Plan(rows, own, some.lengths, layout, segments, tables, keys, alone, begin)

    def _passes(self, slots: Sequence[int]) -> list[list[int]]:
        """Which rows run together: a list of passes, each a list of row numbers sorted by slot."""
        key = {slot: self.bank.order(slot) for slot in set(slots)}
        lonely = {slot for slot in key if self._alone(slot)}
        rows = sorted(range(len(slots)), key=[key[slot] for slot in slots].__getitem__)
        together = [i for i in rows if slots[i] not in lonely]
        alone: dict[int, list[int]] = {}
        for i in rows if lonely else ():
            if slots[i] in lonely:
                alone.setdefault(slots[i], []).append(i)
        return ([together] if together else []) + list(alone.values())

    def _alone(self, slot: int) -> bool:
        if slot == BASE or slot in self.weights:
            return slot in self.weights
        special = self.base.sites.single_slot
        return bool(special) and any(part.site.kind in special for part in self.bank.slot(slot).parts)

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
