"""The forward pass, the only one in the code base: hidden states out, no labels.

A batch is planned on the host (`plan`: which rows go where, all numbers in arrays) and run on the device (`run`: only
tensors), so that a run can be recorded and replayed with other numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from inlay.bank.bank import BASE, Bank
from inlay.bank.noise import Keys
from inlay.bank.ops import has_kernels
from inlay.bank.passes import BankPass, Observer, Pass
from inlay.bank.plan import PassPlan
from inlay.bank.planning import InputSpec, model_inputs, plan_passes
from inlay.bank.weights import call_with
from inlay.bank.wiring import Wiring
from inlay.base.load import Base
from inlay.data.batch import Array, Batch
from inlay.errors import InlayError, SlotError


class Forward:
    """A base with its wiring, and a bank: everything a forward pass needs."""

    def __init__(self, base: Base):
        self.base = base
        # on the CPU one product gains nothing (MKL), and three keep weight-level adapters equal to the last bit
        fuse = base.sites.arch.packable and (base.device.type == "cuda" or bool(base.products))
        self.wiring = Wiring(base.model, base.sites, fuse=fuse, products=base.products)
        self.bank = Bank(base.device, base.sites.single_slot)
        self.spec = InputSpec.of(base)
        self.compiled = False
        """Run layers as compiled code; only on CUDA."""
        self.kernels = has_kernels(base.device)
        """Whether routes are tensors for kernels; set it to False to do without."""

    def plan(self, batch: Batch, slots: Array, keys: Keys | None, packed: bool | None = None) -> list[PassPlan[Array]]:
        """The passes of a batch.

        Args:
            slots: the slot of every row; 0 is the bare base.
            keys: the slots in it run in training mode with their own noise; None trains no slot.
            packed: None packs where the architecture can.
        """
        self._check(batch, slots, keys, packed)
        packed = self.base.sites.arch.packable if packed is None else packed
        return plan_passes(self.spec, self.bank, batch, slots, keys, packed, self.kernels)

    def run(self, plan: PassPlan[Tensor], observer: Observer | None = None) -> Tensor:
        """[tokens, d]: one pass, with its plan on the device."""
        state = BankPass(self.bank, plan.runs, plan.noise, plan.keys, plan.alone is not None)
        weights = None if plan.alone is None else self.bank.slots[plan.alone].weights
        if weights is not None and plan.alone is not None:
            state.weights = weights.effective(self.base, plan.alone, plan.keys)
        if plan.begin is not None:
            state.begin = plan.begin[0], plan.begin[1].unsqueeze(0).to(self.bank.device)
        as_it_is = state.wants or state.weights or self.wiring.checkpointing or observer is not None
        state.compiled = self.compiled and plan.is_fixed and not as_it_is
        state.observer = observer
        if state.compiled:
            self._mark_dynamic_sizes(plan)
        inputs = model_inputs(self.spec, plan.tokens)
        if plan.attention_dropout:
            state.attention_dropout = plan.attention_dropout
            # other architectures have a dropout module of their own
            if self.base.sites.arch.packable and self.base.sites.arch.own_attention is None:
                inputs["inlay_drop"] = state.drop_attention
        states = self.call(state, inputs)
        return states if plan.tokens.valid is None else states[plan.tokens.valid]

    def call(self, state: Pass, inputs: Mapping[str, Any]) -> Tensor:
        """[tokens, d]: the model run under a pass, with its own arguments; padding has states too."""
        model = self.base.model
        state.rows = inputs.get("inlay_rows")
        with self.wiring.running(state):
            out = call_with(state.weights, model, model.forward, (), inputs)
        states: Tensor = out.last_hidden_state.flatten(0, 1)
        return states

    def first_adapted_layer(self, slot: int) -> int:
        """The lowest layer whose input an adapter leaves as the base has it; 0 if it must see all layers."""
        sites = self.base.sites
        record = self.bank.slot(slot)
        outside = ("pooler", "final.norm", "head", "head.tokens")
        layers = [0 if "hidden" in record.wants else sites.layers]
        layers += [part.site.layer or 0 for part in record.parts if part.site.kind not in outside]
        if record.weights is not None:
            above = [site.path for site in sites if site.kind in outside]
            for name in record.weights.method.targets(sites):
                if not name.startswith(tuple(f"{path}." for path in above)):
                    inside = (i for i, path in enumerate(sites.layer_paths) if name.startswith(f"{path}."))
                    layers.append(next(inside, 0))
        return min(layers) if sites.depth == sites.layers else 0

    def _mark_dynamic_sizes(self, plan: PassPlan[Tensor]) -> None:
        """Tell the compiler that the sizes of batches and stacks vary, which it would only learn by compiling again."""
        stacks = (stack for group in self.bank.groups.values() for stack in group.stacks.values())
        for tensor in itertools.chain(_tensors(plan), stacks):
            torch._dynamo.mark_dynamic(tensor, 0)

    def _check(self, batch: Batch, slots: Array, keys: Keys | None, packed: bool | None) -> None:
        if len(slots) != len(batch.lengths):
            raise SlotError(f"the batch has {len(batch.lengths)} rows but {len(slots)} slots were given")
        if batch.states is not None and (packed is False or not self.base.sites.arch.packable):
            raise InlayError("a batch that begins at a later layer must be packed")
        if batch.states is not None:
            adapters = set(slots.tolist()) - {BASE}
            if any(batch.layer > self.first_adapted_layer(slot) for slot in adapters):
                raise SlotError(f"this batch begins at layer {batch.layer}, but an adapter in it changes a lower one")
        if packed and not self.base.sites.arch.packable:
            raise InlayError(f"{self.base.sites.arch.model_type} cannot run packed batches")
        stale = [slot for slot in (keys.of_slot if keys else ()) if slot not in self.bank.slots]
        if stale:
            raise SlotError("these keys name an adapter that has been unloaded; make them anew")
        vocabulary, limit = self.spec.vocabulary, self.spec.longest
        if batch.ids.min() < 0 or batch.ids.max() >= vocabulary:
            raise InlayError(f"the batch has token ids outside the base's vocabulary of {vocabulary}")
        longest = int(batch.lengths.argmax())
        if limit is not None and batch.lengths[longest] > limit:
            raise InlayError(f"row {longest} has {batch.lengths[longest]} tokens, {self.base.name} takes {limit}")


def _tensors(plan: PassPlan[Tensor]) -> Iterator[Tensor]:
    """The tensors of a plan that vary in their first size."""
    tiles, noise = plan.runs.tiles, plan.noise
    if tiles is not None:
        yield from (tiles.bounds, tiles.tiles, tiles.place)
    if noise is not None:
        yield from (noise.key, noise.local)
    yield from (t for t in (plan.tokens.ids, plan.tokens.positions, plan.tokens.ends) if t is not None)
