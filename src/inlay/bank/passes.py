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

from inlay.bank.bank import BASE, Bank, Mount
from inlay.bank.delta import Delta, Method, Tensors
from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys
from inlay.bank.route import Route, Segments
from inlay.base.sites import Site

Action = tuple[Delta, Tensors, Route]


class Reached(Exception):  # noqa: N818 - not an error: the way out of a model that need not run to its end
    """The input of the layer at which a pass was to stop."""

    def __init__(self, states: Tensor):
        super().__init__()
        self.states = states


class Pass(ABC):
    """What the wiring asks while the model runs."""

    def __init__(self, wants: Iterable[str]):
        self.wants = frozenset(wants)
        self.attention_dropout = False
        self.depth = 0
        """How many layers have begun."""
        self.hidden: list[Tensor] = []
        """The layers' inputs so far, if a delta wants them."""
        self.sublayer_input: dict[str, Tensor] = {}
        """The newest input of attention and of the feed-forward, if a delta wants it."""
        self.weights: Mapping[str, Tensor] = {}
        """Base parameters that are replaced in this pass."""
        self.begin: tuple[int, Tensor] | None = None
        """A layer and its input [1, tokens, d]: the layers below it are left out."""
        self.stop: int | None = None
        """Go no further than the input of this layer: it raises Reached."""

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
        self.dropout = self.attention_dropout = dropout

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
        alone: bool = False,
    ):
        """
        Args:
            segments: slots over the tokens the model sees (with padding, if any).
            true_segments, valid: slots over the tokens alone, and where those are among the model's.
            alone: all tokens belong to one slot, so that sites may be called on anything.
        """
        present = {slot for _, _, slot in segments.runs} - {BASE}
        super().__init__(w for slot in present if slot in bank.slots for w in bank.slots[slot].wants)
        self.bank = bank
        self.segments = segments
        self.keys = keys
        self.without_dropout = without_dropout
        self.true_segments = true_segments or segments
        self.valid = valid
        self.alone = alone
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
        place = f"dropout {path} {self.depth}"
        mask = dropout_mask(self.keys, self.true_segments, self.without_dropout, place, p, y)
        if self.valid is not None:
            padded = torch.ones(self.segments.tokens, y.shape[-1], device=y.device)
            padded[self.valid] = mask
            mask = padded
        return y * mask.to(y.dtype).view_as(y)

    def _route(self, mount: Mount) -> Route | None:
        key: Any = id(mount.group)
        if not mount.is_whole:
            key = (key, tuple(slot for _, _, slot in self.segments.runs if slot in mount.slots))
        if key not in self._routes:
            route = self.segments.route(mount.entry_of)
            self._routes[key] = Route.uniform(route.segments[0][2]) if route is not None and self.alone else route
        return self._routes[key]

    def _prepare(self, present: set[int]) -> None:
        """Apply mixout and gates, entry by entry, so that no adapter's arithmetic depends on its neighbours."""
        if self.keys is None and not any(delta.gated for delta in self.bank.groups):
            return
        for mount in (m for mounts in self.bank.mounts.values() for m in mounts):
            gated = mount.group.delta.gated
            slots = [s for s in sorted(mount.slots & present) if gated or self._mixes(s)]
            if not slots:
                continue
            own = [self._own(mount, slot) for slot in slots]
            entries = torch.tensor([mount.group.entry_of[s] for s in slots], device=self.bank.device)
            self._tensors[id(mount)] = {
                name: stack.index_copy(0, entries, torch.cat([o[name] for o in own]))
                for name, stack in mount.tensors().items()
            }

    def _mixes(self, slot: int) -> bool:
        return self.keys is not None and slot in self.keys.of_slot and bool(self.bank.slots[slot].start)

    def _own(self, mount: Mount, slot: int) -> Tensors:
        """One slot's effective tensors at a mount, [1, ...] each: drawn at their true sizes, then padded."""
        record, stacks = self.bank.slots[slot], mount.tensors()
        true_size = {
            name: s[i].unsqueeze(0) for name, full in mount.names.items() for s, i in (self.bank.entry(slot, full),)
        }
        own = drawn(mount.group.delta, mount.names, true_size, record.method, record.start, self.keys, slot)
        return {name: _pad(tensor[0], stacks[name][0]).unsqueeze(0) for name, tensor in own.items()}


def dropout_mask(keys: Keys, segments: Segments, without: frozenset[int], place: str, p: float, like: Tensor) -> Tensor:
    """[tokens, width of `like`]: 0 or 1 / (1 - p) for slots that train, 1 for all others."""
    width = like.shape[-1]
    mask = torch.ones(segments.tokens, width, device=like.device)
    for start, end, slot in segments.runs:
        if slot in keys.of_slot and slot not in without:
            mask[start:end] = keys.keep(slot, place, (end - start, width), p, like.device)
    return mask


def drawn(
    delta: Delta,
    names: Mapping[str, str],
    tensors: Tensors,
    method: Method | None,
    start: Tensors,
    keys: Keys | None,
    slot: int,
) -> Tensors:
    """One adapter's tensors [1, ...] as a pass sees them: mixout and gates applied, with noise if it trains."""
    if keys is None or slot not in keys.of_slot:
        return delta.effective(tensors, None)
    mixed = dict(tensors)
    for name, full in names.items():
        if method is not None and full in start:
            value = tensors[name][0]
            unit, p = method.mixout_unit, method.mixout
            keep = keep_mask(keys, slot, full, tuple(value.shape), p, unit, 0, value.device)
            mixed[name] = mix(value, start[full].to(value.device), keep).unsqueeze(0)

    def uniform(name: str, like: Tensor) -> Tensor:
        return keys.uniform(slot, f"gate {names[name]}", tuple(like.shape[1:]), like.device).unsqueeze(0)

    return delta.effective(mixed, uniform)


def _pad(value: Tensor, like: Tensor) -> Tensor:
    """Zeros after a tensor, up to the shape of `like`."""
    widths = [
        w for have, want in zip(reversed(value.shape), reversed(like.shape), strict=True) for w in (0, want - have)
    ]
    return F.pad(value, widths)
