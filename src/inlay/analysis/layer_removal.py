"""An adapter without its changes in some layers, as a slot beside others; nothing is trained again.

Without the layers first to last, an adapter still equals the whole one below the layer `first`. So its rows begin at
that layer, with the whole adapter's states, and everything below is computed once and not once per span. If a base
cannot begin in the middle (padded or repeated layers), the rows run from the start, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from inlay.analysis.rows import in_batches
from inlay.analysis.variants import loaded_variants
from inlay.bank.delta import Method, Param, Part, SlotMethod, Tensors, Uniform, WeightMethod
from inlay.base.sites import Sites
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.predict import batch_of, budget, cut
from inlay.engine.watch import layer_states
from inlay.errors import RunError
from inlay.methods.norms import NormShift
from inlay.tasks import Row

_BYTES = 1 << 30
"""Room for states."""
_ABOVE = ("pooler", "final.norm")
"""Sites above the layers; all others outside the layers are below."""


@dataclass(frozen=True)
class Span:
    """Layers first to last, both removed."""

    first: int
    last: int

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and self.first <= layer <= self.last


def spans(layers: int) -> list[Span]:
    """Every span of this many layers."""
    return [Span(first, last) for first in range(layers) for last in range(first, layers)]


@dataclass(frozen=True)
class Removal:
    """Which parts of an adapter are removed."""

    span: Span
    norms: bool
    """Whether trained norms are removed, too."""
    begins: bool
    """Whether its rows begin at the first removed layer, so that nothing below it is needed."""

    def keeps(self, layer: int | None, kind: str, is_norm: bool) -> bool:
        """Whether a part at a site stays."""
        if layer is None:
            return not self.begins or kind in _ABOVE
        if layer in self.span:
            return is_norm and not self.norms
        return layer > self.span.last or not self.begins


@dataclass(frozen=True, kw_only=True)
class ReducedMethod(SlotMethod):
    """A method of slots with fewer parts."""

    whole: SlotMethod
    removal: Removal

    def parts(self, sites: Sites) -> list[Part]:
        """The parts that stay; rows that layers share stay whole."""
        return [p for p in self.whole.parts(sites) if self.removal.keeps(p.site.layer, p.site.kind, _is_norm(p))]


@dataclass(frozen=True, kw_only=True)
class ReducedWeightMethod(WeightMethod):
    """A weight-level method that changes fewer of the base's parameters."""

    whole: WeightMethod
    removal: Removal

    def targets(self, sites: Sites) -> list[str]:
        """The parameters that stay changed."""
        return [name for name in self.whole.targets(sites) if self.removal.keeps(*_place(sites, name))]

    def difference(self, name: str, tensors: Tensors, like: Tensor, uniform: Uniform | None) -> Tensor:
        """The method's own."""
        return self.whole.difference(name, tensors, like, uniform)

    def params(self, sites: Sites) -> dict[str, Param]:
        """The method's own."""
        return self.whole.params(sites)

    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """The method's own."""
        return self.whole.initial(sites, seed)

    def by_site(self, sites: Sites) -> dict[str, int]:
        """The method's own."""
        return self.whole.by_site(sites)


def outputs_without(
    host: Host, name: str, rows: Sequence[Row], removed: Sequence[Span], norms: bool = False
) -> dict[Span, list[Tensor]]:
    """The logits of every row, on the CPU, for each way of removing layers.

    Ways that begin at the same layer run side by side, as slots of one batch; weight-level adapters one by one.

    Args:
        norms: trained norms are removed, too.
    """
    record, tensors = host.fitted(host.adapter(name))
    begins = _can_begin(host, name)
    groups = _groups(removed, alone=isinstance(record.method, WeightMethod))
    outputs = {span: [torch.empty(0)] * len(rows) for span in removed}
    for chunk in cut([len(row.ids) for row in rows], _room(host)):
        rows_of_chunk = [rows[i] for i in chunk]
        batch = batch_of(rows_of_chunk)
        states = _states(host, name, rows_of_chunk) if begins else None
        for group in groups:
            first = group[0].first
            start = batch if states is None else replace(batch, states=states[first], layer=first)
            methods = [_reduced(record.method, Removal(span, norms, begins)) for span in group]
            variants = {f"{name} {i}": (replace(record, method=m), tensors) for i, m in enumerate(methods)}
            with loaded_variants(host, variants) as names:
                logits_of_span = _side_by_side(host, start, names)
            for span, logits in zip(group, logits_of_span, strict=True):
                for i, logits_of_row in zip(chunk, logits, strict=True):
                    outputs[span][i] = logits_of_row
    return outputs


def _groups(removed: Sequence[Span], alone: bool) -> list[list[Span]]:
    """The spans that run together, since they begin at the same layer."""
    by_first: dict[Span | int, list[Span]] = {}
    for span in removed:
        by_first.setdefault(span if alone else span.first, []).append(span)
    return list(by_first.values())


def refuse_nothing(host: Host, name: str, norms: bool) -> None:
    """An error if an adapter adds nothing in layers that could be removed."""
    sites, (record, _) = host.base.sites, host.fitted(host.adapter(name))
    if sites.layers < 2:
        raise RunError(f"{host.base.name} has one layer of its own, so there are no spans of layers to compare")
    everywhere = Removal(Span(0, sites.layers - 1), norms, begins=False)
    without = _reduced(record.method, everywhere)
    if isinstance(record.method, WeightMethod) and isinstance(without, WeightMethod):
        changes = record.method.targets(sites) != without.targets(sites)
    else:
        changes = len(record.method.params(sites)) > len(without.params(sites))
    if not changes:
        hint = "pass with_norms (--with-norms)" if not norms and _has_norms(record.method, sites) else "choose another"
        raise RunError(f"{name} ({record.method.name}) has nothing to remove in the layers; {hint}")


def _has_norms(method: Method, sites: Sites) -> bool:
    """Whether a method trains norms of the layers."""
    if isinstance(method, SlotMethod):
        return any(_is_norm(part) and part.site.layer is not None for part in method.parts(sites))
    return True


def _can_begin(host: Host, name: str) -> bool:
    sites = host.base.sites
    return (
        sites.arch.packable
        and sites.depth == sites.layers
        and "hidden" not in host.forward.bank.slot(host.slot(name)).wants
    )


def _room(host: Host) -> int:
    """How many tokens have room for their states in all layers."""
    sites = host.base.sites
    return max(1, _BYTES // ((sites.depth + 1) * sites.hidden * host.base.dtype.itemsize))


def _states(host: Host, name: str, rows: Sequence[Row]) -> Tensor:
    """[depth + 1, tokens, d] of rows under the whole adapter."""
    states = dict(in_batches(host, [(name, row) for row in rows], layer_states))
    return torch.cat([states[i] for i in range(len(rows))], dim=1)


def _reduced(method: Method, removal: Removal) -> SlotMethod | WeightMethod:
    if isinstance(method, SlotMethod):
        return ReducedMethod(whole=method, removal=removal)
    assert isinstance(method, WeightMethod)
    return ReducedWeightMethod(whole=method, removal=removal)


def _side_by_side(host: Host, batch: Batch, names: Sequence[str]) -> list[list[Tensor]]:
    """The logits of all rows for each of the adapters, which share batches."""
    count = len(batch.lengths)
    outputs: list[list[Tensor]] = [[torch.empty(0)] * count for _ in names]
    pairs = [(adapter, row) for adapter in range(len(names)) for row in range(count)]
    for chunk in cut([int(batch.lengths[row]) for _, row in pairs], budget(host)):
        adapters, rows = zip(*(pairs[i] for i in chunk), strict=True)
        logits = host.logits_on_cpu(batch.take(np.array(rows)), [names[adapter] for adapter in adapters])
        for adapter, row, logits_of_row in zip(adapters, rows, logits, strict=True):
            outputs[adapter][row] = logits_of_row
    return outputs


def _is_norm(part: Part) -> bool:
    return isinstance(part.delta, NormShift)


def _place(sites: Sites, name: str) -> tuple[int | None, str, bool]:
    """The place of a parameter of the base: layer, kind of site outside the layers, and whether it is a norm's."""
    layer = next((i for i, path in enumerate(sites.layer_paths) if name.startswith(f"{path}.")), None)
    kind = next((site.kind for site in sites if name.startswith(f"{site.path}.")), "")
    return layer, kind, kind.endswith("norm")
