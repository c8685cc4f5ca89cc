"""One forward pass: which deltas act at a site, with which parameters, on which tokens.

Gates and mixout change parameters for the whole pass; that is done here, once and before the model runs, so
that all sites of a shared row see the same draw and gradient checkpointing sees the same tensors again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.bank import BASE, Bank, Mount
from inlay.bank.delta import Delta, Method, Tensors
from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys, keyed_dropout
from inlay.bank.route import Route, Segments
from inlay.base.sites import Site
from inlay.data.batch import repeated

Action = tuple[Delta, Tensors, Route]


class Reached(Exception):  # noqa: N818 - not an error: the way out of a model that need not run to its end
    """The input of the layer at which a pass was to stop."""

    def __init__(self, states: Tensor):
        super().__init__()
        self.states = states


@dataclass
class Here:
    """What acts in one layer, or outside the layers. Its keys say nothing about the layer, so all can share code."""

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
        self.attention_dropout = False
        self.depth = 0
        """How many layers have begun."""
        self.here = self.outside = Here({}, {})
        self.hidden: list[Tensor] = []
        """The layers' inputs so far, if a delta wants them."""
        self.sublayer_input: dict[str, Tensor] = {}
        """The newest input of attention and of the feed-forward, if a delta wants it."""
        self.fused: dict[str, Any] = {}
        """Results of a fused product that have not been asked for yet."""
        self.weights: Mapping[str, Tensor] = {}
        """Base parameters that are replaced in this pass."""
        self.begin: tuple[int, Tensor] | None = None
        """A layer and its input [1, tokens, d]: the layers below it are left out."""
        self.stop: int | None = None
        """Go no further than the input of this layer: it raises Reached."""

    @abstractmethod
    def at(self, site: Site) -> Sequence[Action]:
        """The deltas that act at a site."""

    @abstractmethod
    def drop(self, here: Here, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout at a place."""

    def look(self, sites: Iterable[Site], places: Mapping[str, Tensor]) -> Here:
        """What acts at these sites."""
        return Here({site.kind: self.at(site) for site in sites}, places)


class UniformPass(Pass):
    """Every token belongs to one adapter: for a model with its own training loop."""

    def __init__(self, actions: Mapping[str, list[Action]], dropout: bool, wants: Iterable[str]):
        super().__init__(wants)
        self.actions = actions
        self.dropout = self.attention_dropout = dropout

    def at(self, site: Site) -> Sequence[Action]:
        """As given."""
        return self.actions.get(site.name, ())

    def drop(self, here: Here, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """The model's own dropout."""
        return F.dropout(y, p, training) if self.dropout else y


class BankPass(Pass):
    """Rows of many slots, sorted by slot."""

    def __init__(
        self,
        bank: Bank,
        segments: Segments,
        keys: Keys | None,
        tables: Mapping[str, Tensor] | None = None,
        alone: bool = False,
        pooler: bool = False,
    ):
        """
        Args:
            segments: slots over the tokens the model sees (with padding, if any).
            tables: what `noise_tables` and `kernel_tables` made, on the device. Without the former nothing is dropped,
                without the latter routes are segments.
            alone: all tokens belong to one slot, so that sites may be called on anything.
            pooler: the tokens are pooled rows, and only the pooler runs; else the model's own call of it is left alone.
        """
        present = {slot for _, _, slot in segments.runs} - {BASE}
        super().__init__(w for slot in present if slot in bank.slots for w in bank.slots[slot].wants)
        self.bank = bank
        self.segments = segments
        self.keys = keys
        self.tables = tables or {}
        self.alone = alone
        self.pooler = pooler
        self.drops = "local" in self.tables
        self._spread: Any = None
        self._routes: dict[str, Route | None] = {}
        self._tensors: dict[int, Tensors] = {}
        self._prepare(present)

    def at(self, site: Site) -> Sequence[Action]:
        """The mounts at a site that have tokens in this batch."""
        if site.kind == "pooler" and not (self.pooler or self.alone):
            return ()
        found = []
        for mount in self.bank.mounts.get(site.name, ()):
            route = self.route(mount)
            if route is not None:
                found.append((mount.group.delta, self._tensors.get(id(mount)) or mount.tensors(), route))
        return found

    def drop(self, here: Here, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Dropout keyed by slot, step and place; none for slots that are only evaluated."""
        if not self.drops or p == 0:
            return y
        flat = y.reshape(-1, y.shape[-1])
        dropped = keyed_dropout(flat, self.tables["key"], self.tables["local"], here.places[place], p)
        return dropped.view(y.shape)

    def route(self, mount: Mount) -> Route | None:
        """Who uses which entry of a mount; None if none of its slots is in this batch."""
        if mount.route not in self._routes:
            self._routes[mount.route] = self._make(mount)
        return self._routes[mount.route]

    def _make(self, mount: Mount) -> Route | None:
        if "bounds" in self.tables:
            if mount.route not in self.tables:
                return None
            from inlay.bank.kernel_route import KernelRoute, Spread

            self._spread = self._spread or Spread.of(self.tables)
            return KernelRoute(self.tables[mount.route], self._spread)
        route = self.segments.route(mount.entry_of)
        return Route.uniform(route.segments[0][2]) if route is not None and self.alone else route

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


def kernel_tables(bank: Bank, segments: Segments, size: int, places: int, at: Iterable[str]) -> dict[str, Tensor]:
    """What kernels need to know of a batch: its runs, and the entries of every route at these sites."""
    from inlay.bank.kernel_route import block_for

    tables = segments.tables(size, places, block_for(size))
    for mount in (mount for site in at for mount in bank.mounts.get(site, ())):
        if mount.route not in tables:
            found = segments.entries(mount.entry_of, places)
            if found is not None:
                tables[mount.route] = found
    return tables


def noise_tables(segments: Segments, keys: Keys, quiet: frozenset[int], size: int) -> dict[str, Tensor]:
    """For dropout: the key of every token's slot, and its number within the slot, -1 where nothing is dropped.

    Args:
        segments: who owns which token.
        size: of the tables; -1 for the rest.
    """
    own = [keys.number(slot) if slot in keys.of_slot and slot not in quiet else None for _, _, slot in segments.runs]
    firsts = [(start - keys.tokens_before.get(slot, 0), end - start) for start, end, slot in segments.runs]
    starts, lengths = torch.tensor(firsts).view(-1, 2).unbind(1)
    noisy = repeated(torch.tensor([number is not None for number in own]), lengths)
    local = torch.arange(segments.tokens) - repeated(starts, lengths)
    found = {"key": torch.zeros(size, dtype=torch.long), "local": torch.full((size,), -1)}
    found["key"][: segments.tokens] = repeated(torch.tensor([number or 0 for number in own]), lengths)
    found["local"][: segments.tokens] = local.where(noisy, -1)
    return found


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
