"""One forward pass: which deltas act at a site, with which parameters, on which tokens.

Gates and mixout change parameters for the whole pass; that is done here, once and before the model runs, so
that all sites of a shared row see the same draw and gradient checkpointing sees the same tensors again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.bank import Bank
from inlay.bank.delta import Delta, Method, Signal, Tensors
from inlay.bank.group import Group, Mount
from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys, keyed_dropout
from inlay.bank.plan import Noise, Runs
from inlay.bank.route import Route, SegmentRoute, UniformRoute
from inlay.base.attention import RowBounds
from inlay.base.leaf import Leaf
from inlay.base.sites import Site

PROBABILITIES = "attention probabilities"
"""The place of their dropout in a layer; not every architecture has a module for it."""
Action = tuple[Delta, Tensors, Route]


class Observer:
    """Is called with what a pass does, as it does it. An observed pass runs no compiled code."""

    def layer(self, depth: int, states: Tensor) -> None:
        """The input of a layer; after the last one, the model's last hidden state."""

    def leaf(self, site: Site, out: Tensor) -> None:
        """The output of a projection or a norm, deltas included."""

    def delta(self, depth: int, delta: Delta, route: Route, tensors: Tensors, at: Signal) -> None:
        """A delta that is about to act, in the layer at this depth."""


@dataclass
class LayerActions:
    """What acts in one layer, or outside the layers. Its keys do not name the layer, so layers can share code."""

    actions: Mapping[str, Sequence[Action]]
    """Kind of site -> its deltas."""
    places: Mapping[str, Tensor]
    """Path of a dropout, within the layer -> the number of that place."""


class Pass(ABC):
    """What the wiring asks while the model runs."""

    compiled = False
    """Whether layers run as compiled code."""

    def __init__(self, wants: Iterable[str]):
        self.wants = frozenset(wants)
        self.depth = 0
        """How many layers have begun."""
        self.here = self.outside = LayerActions({}, {})
        self.hidden: list[Tensor] = []
        """The layers' inputs so far, if a delta wants them."""
        self.sublayer_input: dict[str, Tensor] = {}
        """The newest input of attention and of the feed-forward, if a delta wants it."""
        self.fused: dict[str, Any] = {}
        """Results of a fused product that have not been used yet."""
        self.weights: Mapping[str, Tensor] = {}
        """Base parameters that are replaced in this pass."""
        self.begin: tuple[int, Tensor] | None = None
        """A layer and its input [1, tokens, d]: the layers below it are left out."""
        self.observer: Observer | None = None
        self.rows: RowBounds | None = None
        """The rows of a packed batch, for a model that computes attention itself."""
        self.leaves: Mapping[str, Leaf] = {}
        """Site name -> the frozen module there."""
        self._at_site: dict[str, list[Action]] = {}
        """Site name -> what acts there, once the pass has reached it."""

    @abstractmethod
    def at(self, site: Site) -> Sequence[Action]:
        """The deltas that act at a site."""

    @abstractmethod
    def drop(self, here: LayerActions, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout at a place."""

    @abstractmethod
    def drop_attention(self, probabilities: Tensor, plain: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Dropout of attention probabilities [rows, heads, queries, keys]; `plain` is the model's own."""

    def layer_actions(self, sites: Iterable[Site], places: Mapping[str, Tensor]) -> LayerActions:
        """What acts at these sites, with all that is derived from its parameters; every call gives the same."""
        actions: dict[str, Sequence[Action]] = {}
        for site in sites:
            if site.name not in self._at_site:
                self._at_site[site.name] = at_site = []
                for delta, tensors, route in self.at(site):
                    derived = delta.derived(tensors, self.leaves[site.name])
                    at_site.append((delta, {**tensors, **derived} if derived else tensors, route))
            actions[site.kind] = self._at_site[site.name]
        return LayerActions(actions, places)


class UniformPass(Pass):
    """A pass whose tokens all belong to one adapter, for a model with its own training loop."""

    def __init__(self, actions: Mapping[str, list[Action]], dropout: bool, wants: Iterable[str]):
        super().__init__(wants)
        self.actions = actions
        self.dropout = dropout

    def at(self, site: Site) -> Sequence[Action]:
        """The actions this pass was made with."""
        return self.actions.get(site.name, ())

    def drop(self, here: LayerActions, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """The model's own dropout."""
        return F.dropout(y, p, training) if self.dropout else y

    def drop_attention(self, probabilities: Tensor, plain: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The model's own dropout."""
        return probabilities if plain is None or not self.dropout else plain(probabilities)


class BankPass(Pass):
    """A pass over rows of many slots, sorted by slot."""

    def __init__(
        self,
        bank: Bank,
        runs: Runs[Tensor],
        noise: Noise[Tensor] | None = None,
        keys: Keys | None = None,
        alone: bool = False,
        pooler: bool = False,
    ):
        """
        Args:
            runs: which slot owns which of the tokens that the model sees, padding included.
            keys: the slots in it train; None trains no slot.
            alone: all tokens belong to one slot, so that sites may be called on anything.
            pooler: the tokens are pooled rows, and only the pooler runs; otherwise adapters do not change the pooler.
        """
        self._row = {number: row for row, (number, _) in enumerate(runs.groups)}
        acting = [group for group in bank.groups.values() if group.number in self._row]
        super().__init__(want for group in acting for want in group.delta.wants)
        self.bank = bank
        self.noise = noise
        self.keys = keys
        self.alone = alone
        self.pooler = pooler
        self.runs = runs
        self.attention_dropout = 0.0
        """Of attention probabilities, in padded rows."""
        self._routes: dict[int, Route] = {}
        self._tensors: dict[int, Tensors] = {}
        self._prepare(acting)

    def at(self, site: Site) -> Sequence[Action]:
        """The mounts at a site that have tokens in this batch."""
        if site.kind == "pooler" and not (self.pooler or self.alone):
            return ()
        return [
            (mount.group.delta, self._tensors.get(id(mount)) or mount.tensors, self.route(mount.group))
            for mount in self.bank.mounts.get(site.name, ())
            if mount.group.number in self._row
        ]

    def drop(self, here: LayerActions, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout keyed by slot, step and place; slots that are only evaluated have none."""
        if self.noise is None or p == 0:
            return y
        flat = y.reshape(-1, y.shape[-1])
        return keyed_dropout(flat, self.noise.key, self.noise.local, here.places[place], p).view(y.shape)

    def drop_attention(self, probabilities: Tensor, plain: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Keyed by the query; keys come before heads, so that bits do not depend on how long the longest row is."""
        if not self.attention_dropout or probabilities.dim() < 4:  # DeBERTa's relative positions belong to no row
            return probabilities
        by_query = probabilities.permute(0, 2, 3, 1)
        dropped = self.drop(self.here, PROBABILITIES, self.attention_dropout, True, by_query.flatten(2))
        return dropped.view(by_query.shape).permute(0, 3, 1, 2).contiguous()

    def route(self, group: Group) -> Route:
        """The route of a group that has tokens in this batch."""
        if group.number not in self._routes:
            self._routes[group.number] = route_of(self.runs, self._row[group.number], self.alone, self.compiled)
        return self._routes[group.number]

    def _prepare(self, acting: Iterable[Group]) -> None:
        """Apply mixout and gates, entry by entry, so that no adapter's arithmetic depends on its neighbours."""
        for group in acting:
            if self.keys is not None or group.delta.gated:
                here = sorted(group.entry_of.keys() & self.runs.slots)
                slots = [slot for slot in here if group.delta.gated or self._mixes(slot)]
                for mount in group.mounts if slots else ():
                    self._tensors[id(mount)] = self._drawn(mount, slots)

    def _mixes(self, slot: int) -> bool:
        return self.keys is not None and slot in self.keys.of_slot and bool(self.bank.slots[slot].start)

    def _drawn(self, mount: Mount, slots: Sequence[int]) -> Tensors:
        """A mount's stacks, with the effective tensors of these slots in their entries."""
        effective = [self._effective(mount, slot) for slot in slots]
        entries = torch.tensor([mount.group.entry_of[s] for s in slots], device=self.bank.device)
        stacks = {name: stack for name, stack in mount.tensors.items() if mount.names[name] not in mount.group.shared}
        drawn = {n: s.index_copy(0, entries, torch.cat([t[n] for t in effective])) for n, s in stacks.items()}
        return {**mount.tensors, **drawn}

    def _effective(self, mount: Mount, slot: int) -> Tensors:
        """One slot's effective tensors at a mount, [1, ...] each: drawn at their true sizes, then padded."""
        record, stacks = self.bank.slots[slot], mount.tensors
        true_size = {name: self.bank.place(slot, full).tensor.unsqueeze(0) for name, full in mount.names.items()}
        effective = drawn(mount.group.delta, mount.names, true_size, record.method, record.start, self.keys, slot)
        return {name: _pad(tensor[0], stacks[name][0]).unsqueeze(0) for name, tensor in effective.items()}


def route_of(runs: Runs[Tensor], row: int, alone: bool = False, compiled: bool = False) -> Route:
    """The route of the group in this row of `runs.groups`."""
    if runs.tiles is not None:
        from inlay.bank.kernel_route import KernelRoute

        entry = runs.tiles.entries[row]
        if compiled:
            torch._dynamo.mark_dynamic(entry, 0)
        return KernelRoute(entry, runs.tiles)
    entries = runs.entries[row].tolist()
    return UniformRoute(entries[0]) if alone else SegmentRoute.of(runs.bounds.tolist(), entries)


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
