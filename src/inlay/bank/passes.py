"""One forward pass: which deltas act at a site, with which parameters, on which tokens.

Gates and mixout change parameters for the whole pass; that is done here, once and before the model runs, so
that all sites of a shared row see the same draw and gradient checkpointing sees the same tensors again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.bank import BASE, Bank, Group, Mount
from inlay.bank.delta import Delta, Tensors
from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys
from inlay.bank.route import Route, Segments
from inlay.base.sites import Site

Action = tuple[Delta, Tensors, Route]


class Pass(ABC):
    """What the wiring asks while the model runs."""

    def __init__(self, wants: Iterable[str]):
        self.wants = frozenset(wants)
        self.depth = 0
        """How many layers have begun."""
        self.hidden: list[Tensor] = []
        """The layers' inputs so far, if a delta wants them."""
        self.sublayer_input: dict[str, Tensor] = {}
        """The newest input of attention and of the feed-forward, if a delta wants it."""

    @abstractmethod
    def at(self, site: Site) -> Iterable[Action]:
        """The deltas that act at a site."""

    @abstractmethod
    def drop(self, path: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout at the module of this path."""


class UniformPass(Pass):
    """Every token belongs to one adapter: for a model with its own training loop."""

    def __init__(self, actions: Mapping[str, list[Action]], dropout: bool, wants: Iterable[str]):
        super().__init__(wants)
        self.actions = actions
        self.dropout = dropout

    def at(self, site: Site) -> Iterable[Action]:
        """As given."""
        return self.actions.get(site.name, ())

    def drop(self, path: str, p: float, training: bool, y: Tensor) -> Tensor:
        """The model's own dropout."""
        return F.dropout(y, p, training) if self.dropout else y


class BankPass(Pass):
    """Rows of many slots, sorted by slot."""

    def __init__(
        self,
        bank: Bank,
        segments: Segments,
        keys: Keys | None,
        without_dropout: frozenset[int],
        true_segments: Segments | None = None,
        valid: Tensor | None = None,
    ):
        """
        Args:
            segments: slots over the tokens the model sees (with padding, if any).
            true_segments, valid: slots over the tokens alone, and where those are among the model's.
        """
        present = {slot for _, _, slot in segments.runs} - {BASE}
        super().__init__(w for slot in present if slot in bank.slots for w in bank.slots[slot].wants)
        self.bank = bank
        self.segments = segments
        self.keys = keys
        self.without_dropout = without_dropout
        self.true_segments = true_segments or segments
        self.valid = valid
        self._routes: dict[Any, Route | None] = {}
        self._tensors: dict[int, Tensors] = {}
        self._prepare(present)

    def at(self, site: Site) -> Iterable[Action]:
        """The mounts at a site that have tokens in this batch."""
        for mount in self.bank.mounts.get(site.name, ()):
            route = self._route(mount)
            if route is not None:
                yield mount.group.delta, self._tensors.get(id(mount)) or mount.tensors(), route

    def drop(self, path: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout keyed by slot, step and place; none for slots that are only evaluated."""
        if self.keys is None or p == 0:
            return y
        width = y.shape[-1]
        mask = torch.ones(self.true_segments.tokens, width, device=y.device)
        for start, end, slot in self.true_segments.runs:
            if slot in self.keys.of_slot and slot not in self.without_dropout:
                place = f"dropout {path} {self.depth}"
                mask[start:end] = self.keys.keep(slot, place, (end - start, width), p, y.device)
        if self.valid is not None:
            padded = torch.ones(self.segments.tokens, width, device=y.device)
            padded[self.valid] = mask
            mask = padded
        return y * mask.to(y.dtype).view_as(y)

    def _route(self, mount: Mount) -> Route | None:
        key: Any = id(mount.group)
        if not mount.is_whole:
            key = (key, tuple(slot for _, _, slot in self.segments.runs if slot in mount.slots))
        if key not in self._routes:
            self._routes[key] = self.segments.route(mount.entry_of)
        return self._routes[key]

    def _prepare(self, present: set[int]) -> None:
        if self.keys is None and not any(delta.gated for delta in self.bank.groups):
            return
        mixed: dict[int, dict[str, Tensor]] = {}
        for mounts in self.bank.mounts.values():
            for mount in mounts:
                slots = mount.slots & present
                if not slots:
                    continue
                tensors = self._mixed(mount.group, present, mixed)
                if mount.group.delta.gated or tensors:
                    named = {name: tensors.get(full, mount.group.stacks[full]) for name, full in mount.names.items()}
                    self._tensors[id(mount)] = self._gated(mount, named, slots)

    def _mixed(self, group: Group, present: set[int], done: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
        """The group's stacks with mixout applied to the slots that train with it; {} if there are none."""
        if id(group) in done:
            return done[id(group)]
        out: dict[str, Tensor] = {}
        for slot in sorted(present & set(group.entry_of)):
            record = self.bank.slots[slot]
            method = record.method
            if self.keys is None or slot not in self.keys.of_slot or method is None or not method.mixout:
                continue
            for name, start in record.start.items():
                if record.groups[name] is not group or record.params[name].role != "trained":
                    continue
                stack, index = self.bank.entry(slot, name)
                shape = record.params[name].shape
                keep = keep_mask(self.keys, slot, name, shape, method.mixout, method.mixout_unit, 0, stack.device)
                whole = out.get(name, stack)
                value = _pad(mix(stack[index], start.to(stack.device), keep), stack[0])
                out[name] = whole.index_copy(0, torch.tensor([index[0]], device=stack.device), value.unsqueeze(0))
        done[id(group)] = out
        return out

    def _gated(self, mount: Mount, tensors: Tensors, slots: set[int]) -> Tensors:
        delta = mount.group.delta
        trained = slots & set(self.keys.of_slot) if self.keys else set()
        if not delta.gated or not trained:
            return delta.effective(tensors, None)
        sampled = delta.effective(tensors, lambda name, like: self._uniform(mount, name, like, trained))
        if trained == slots:
            return sampled
        settled = delta.effective(tensors, None)
        entries = torch.tensor([mount.group.entry_of[slot] for slot in trained], device=self.bank.device)
        chosen = torch.zeros(mount.group.capacity, dtype=torch.bool, device=self.bank.device).index_fill_(0, entries, 1)
        return {n: torch.where(chosen.view(-1, *[1] * (t.dim() - 1)), sampled[n], t) for n, t in settled.items()}

    def _uniform(self, mount: Mount, name: str, like: Tensor, slots: set[int]) -> Tensor:
        """Noise for every slot that trains, drawn at the tensor's true size."""
        assert self.keys is not None
        full = mount.names[name]
        noise = torch.full_like(like, 0.5, requires_grad=False)
        for slot in slots:
            _, index = self.bank.entry(slot, full)
            shape = self.bank.slots[slot].params[full].shape
            noise[index] = self.keys.uniform(slot, f"gate {full}", shape, like.device).to(like.dtype)
        return noise


def _pad(value: Tensor, like: Tensor) -> Tensor:
    """Zeros around a tensor, up to the shape of `like`."""
    widths = [
        w for have, want in zip(reversed(value.shape), reversed(like.shape), strict=True) for w in (0, want - have)
    ]
    return F.pad(value, widths)
