"""From hidden states to logits: every row is pooled in its adapter's way, and every head sees its own rows.

Like a forward pass, this is planned on the host (`plan_heads`) and run on tensors alone (`apply_heads`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from inlay.bank.delta import Signal
from inlay.bank.forward import Forward
from inlay.bank.noise import Keys, keyed_dropout
from inlay.bank.passes import BankPass, route_of
from inlay.bank.plan import Noise, Owners, Runs
from inlay.bank.planning import ends_of, plan_noise, plan_runs, rounded
from inlay.bank.records import A, Record, host
from inlay.bank.weights import call_with
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Array
from inlay.heads.head import ROWS, TOKENS
from inlay.heads.pool import POOLS, pool_rows


@dataclass(frozen=True, eq=False)
class HeadNoise(Record, Generic[A]):
    """A dropout in front of the heads of some slots."""

    noise: Noise[A]
    p: float


@dataclass(frozen=True, eq=False)
class HeadPlace(Record, Generic[A]):
    """Where heads act: on pooled rows, or on the states of all tokens."""

    site: str
    runs: Runs[A]
    noise: Noise[A] | None
    head_noise: tuple[HeadNoise[A], ...] | None
    """Replaces the base's dropout where slots have their own."""


@dataclass(frozen=True, eq=False)
class HeadPlan(Record, Generic[A]):
    """Pooling and heads for rows in the order they run; padding may follow them."""

    first: A
    """[rows] every row's first token."""
    last: A
    counts: A
    """[rows] how many tokens it has."""
    pool: A | None
    """[rows] the number of each row's way of pooling; None if all have the same."""
    ways: tuple[str, ...]
    """The ways of pooling in this batch."""
    rows: HeadPlace[A] | None
    """None if every row has logits per token."""
    tokens: HeadPlace[A] | None
    """None if no row does."""
    keys: Keys | None = host()
    slots: list[int] = host()
    bounds: Array = host()
    """[runs + 1] where the rows of each slot begin and end."""
    lengths: Array = host()


@dataclass(frozen=True)
class Output:
    """The logits of one group of heads."""

    values: Tensor
    """[rows or tokens, width]"""
    start: int
    """The number of the first row or token, in the order they run."""
    group: int
    """The group's number."""
    per_token: bool
    """Whether `values` are of tokens, not of rows."""


class RunOutput(NamedTuple):
    """Where the logits of one adapter's rows, or of their tokens, are."""

    output: Output
    first: int
    last: int
    """Its slice of the output's values."""
    width: int
    """How many of the output's columns are its own."""
    rows: tuple[int, int]
    """Its slice of the rows, in the order they run."""


def plan_heads(
    forward: Forward, owners: Owners, lengths: Array, tokens: int, pools: Mapping[int, str], keys: Keys | None
) -> HeadPlan[Array]:
    """
    Args:
        owners, lengths: of the rows, in the order they run.
        tokens: how many hidden states there will be, padding included.
        pools: how each slot pools.
    """
    n = len(lengths)
    size = rounded(n, 8) if forward.kernels else n
    counts = np.zeros(size, dtype=np.int32)
    counts[:n] = lengths
    ends = counts.cumsum()
    first, last = ends - counts, ends - 1
    first[n:] = last[n:] = 0  # a row of padding may have any token that exists
    way_of_run = [pools[slot] for slot in owners.slots]
    ways = set(way_of_run)
    pooling, pool = tuple(sorted(ways - {"tokens"})), None
    if len(pooling) > 1:
        pool = np.zeros(size, dtype=np.int32)
        pool[:n] = np.array([POOLS.index(way) for way in way_of_run]).repeat(owners.bounds[1:] - owners.bounds[:-1])
    rows = None
    if pooling:
        rows = _place(forward, ROWS, owners, owners.bounds, size, None if keys is None else keys.for_rows())
    by_token = None
    if "tokens" in ways:
        by_token = _place(forward, TOKENS, owners, ends_of(lengths)[owners.bounds], tokens, keys)
    slots, bounds = owners.slots, owners.bounds
    return HeadPlan(first, last, counts, pool, pooling, rows, by_token, keys, slots, bounds, lengths)


def _place(
    forward: Forward, site: str, owners: Owners, bounds: Array, size: int, keys: Keys | None
) -> HeadPlace[Array]:
    bank = forward.bank
    runs = plan_runs(bank, owners, bounds, "rows" if site == ROWS else "tokens", size if forward.kernels else None)
    noise = None if keys is None else plan_noise(bank, owners, bounds, keys, keys.tokens_before, size)
    head_noise = None
    if keys is not None and keys.head_dropout:
        default = head_dropout(forward.base)
        rate_of_slot = {slot: keys.head_dropout.get(slot, default) for slot in owners.slots}
        head_noise = tuple(
            HeadNoise(plan_noise(bank, owners, bounds, _only(keys, rate_of_slot, p), keys.tokens_before, size), p)
            for p in sorted(set(rate_of_slot.values()) - {0.0})
        )
    return HeadPlace(site, runs, noise, head_noise)


def _only(keys: Keys, rate_of_slot: Mapping[int, float], p: float) -> Keys:
    """Keys with dropout only for the slots whose rate is p."""
    return replace(keys, without_dropout=keys.without_dropout.union(s for s, rate in rate_of_slot.items() if rate != p))


def apply_heads(forward: Forward, heads: HeadPlan[Tensor], states: Tensor) -> list[Output]:
    """The logits of every head; `states` are [tokens, d] in the order of the rows."""
    outputs: list[Output] = []
    if heads.rows is not None:
        outputs += _answers(forward, heads, heads.rows, _pooled(forward, heads, heads.rows, states))
    if heads.tokens is not None:
        outputs += _answers(forward, heads, heads.tokens, states)
    return outputs


def by_run(outputs: Sequence[Output], heads: HeadPlan[Array], widths: Mapping[int, int]) -> Iterator[RunOutput]:
    """The logits of every run of rows; `widths` has the width of every slot's head."""
    for out in outputs:
        place = heads.tokens if out.per_token else heads.rows
        assert place is not None
        runs = np.flatnonzero(_entries_of(out, place))
        first, last = (place.runs.bounds[runs + i] - out.start for i in (0, 1))
        widths_of_runs = [widths[place.runs.slots[run]] for run in runs.tolist()]
        rows = zip(heads.bounds[runs].tolist(), heads.bounds[runs + 1].tolist(), strict=True)
        yield from map(RunOutput, repeat(out), first.tolist(), last.tolist(), widths_of_runs, rows)


def rows_of(out: Output, heads: HeadPlan[Array]) -> Array:
    """The numbers of the rows, in the order they run, whose pooled outputs are in `out`."""
    assert heads.rows is not None
    has_output = _entries_of(out, heads.rows) > 0
    return has_output.repeat(heads.bounds[1:] - heads.bounds[:-1]).nonzero()[0]


def _entries_of(out: Output, place: HeadPlace[Array]) -> Array:
    """[runs] the entry of every run in an output's group; 0 where its logits are in another one."""
    row = [number for number, _ in place.runs.groups].index(out.group)
    entries: Array = place.runs.entries[row]
    return entries


def head_dropout(base: Base) -> float:
    """The dropout in front of a head: what the checkpoint's own head would have."""
    config = config_of(base.model)
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "resid_pdrop"):
        if isinstance(p := getattr(config, name, None), float):
            return p
    return 0.0


def _pooled(forward: Forward, heads: HeadPlan[Tensor], place: HeadPlace[Tensor], states: Tensor) -> Tensor:
    """[rows, d], each row pooled in its adapter's way; rows with logits per token are not used."""
    by_way = {way: pool_rows(states, way, heads.first, heads.last, heads.counts) for way in heads.ways}
    if "pooler" in by_way:
        by_way["pooler"] = _pooler(forward, heads, place, by_way["pooler"])
    (_, pooled), *others = by_way.items()
    for way, rows in others:
        assert heads.pool is not None
        pooled = torch.where((heads.pool == POOLS.index(way)).unsqueeze(1), rows, pooled)
    return pooled


def _pooler(forward: Forward, heads: HeadPlan[Tensor], place: HeadPlace[Tensor], first: Tensor) -> Tensor:
    """The checkpoint's pooler on [rows, d], with the changes of adapters."""
    site = forward.base.sites.at("pooler")
    assert site is not None
    model, bank = forward.base.model, forward.bank
    leaf = model.get_submodule(site.path)
    activation = model.get_submodule(forward.base.sites.arch.pooler_activation)
    with forward.wiring.running(BankPass(bank, place.runs, place.noise, heads.keys, pooler=True)):
        pooled: Tensor = leaf(first)
    bounds = place.runs.bounds.tolist()
    for run, slot in enumerate(place.runs.slots):
        weights = bank.slots[slot].weights if slot in bank.slots else None
        if weights is not None:
            changed = weights.effective(forward.base, slot, heads.keys, within=f"{site.path}.")
            weights_of_leaf = {name.removeprefix(f"{site.path}."): weight for name, weight in changed.items()}
            start, end = bounds[run : run + 2]
            rows = first[start:end] if len(bounds) > 2 else first  # a slot alone in its pass has the padding too
            changed_rows = call_with(weights_of_leaf, leaf, leaf.forward, (rows,), {})
            pooled = changed_rows if len(bounds) == 2 else pooled.slice_scatter(changed_rows, 0, start, end)
    return activation(pooled)  # type: ignore[no-any-return]


def _answers(forward: Forward, heads: HeadPlan[Tensor], place: HeadPlace[Tensor], x: Tensor) -> list[Output]:
    for dropout in place.head_noise or ():
        x = keyed_dropout(x, dropout.noise.key, dropout.noise.local, forward.wiring.head_place, dropout.p)
    if place.head_noise is None and place.noise is not None and (p := head_dropout(forward.base)):
        x = keyed_dropout(x, place.noise.key, place.noise.local, forward.wiring.head_place, p)
    outputs: list[Output] = []
    row_of = {number: row for row, (number, _) in enumerate(place.runs.groups)}
    for mount in forward.bank.mounts.get(place.site, ()):
        if (row := row_of.get(mount.group.number)) is not None:
            route = route_of(place.runs, row)
            start, end = route.span or (0, len(x))
            inputs = x[start:end]
            values = mount.group.delta.difference(route, mount.tensors, Signal(mount.site, inputs, inputs))
            outputs.append(Output(values, start, mount.group.number, place.site == TOKENS))
    return outputs
