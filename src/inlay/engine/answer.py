"""From hidden states to logits: every row pooled as its adapter wants, every head on its own rows.

As a forward pass, this is planned on the host (`plan_heads`) and run on tensors alone (`answer`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.bank.bank import Mount
from inlay.bank.delta import Signal
from inlay.bank.forward import Forward
from inlay.bank.noise import Keys, keyed_dropout
from inlay.bank.passes import BankPass
from inlay.bank.route import Segments
from inlay.bank.tables import bucket
from inlay.bank.weights import call_with
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.heads.head import ROWS, TOKENS
from inlay.heads.pool import POOLS, pool_rows


@dataclass(frozen=True)
class Heads:
    """What is to be answered, for rows in the order they are run."""

    slots: Sequence[int]
    lengths: Sequence[int]
    pools: Mapping[int, str]
    """How each slot pools."""
    keys: Keys | None
    tables: Mapping[str, Tensor]

    @property
    def kinds(self) -> list[str]:
        """The ways of pooling."""
        return sorted({self.pools[slot] for slot in self.slots} - {"tokens"})


@dataclass(frozen=True)
class Output:
    """What the heads of one group give."""

    values: Tensor
    """[rows or tokens, width]"""
    start: int
    """The number of the first of them, in the order they are run."""
    mount: Mount

    @property
    def slots(self) -> set[int]:
        """Those whose logits are here; it may have grown since this was recorded."""
        return self.mount.slots

    @property
    def per_token(self) -> bool:
        """Whether tokens are answered for, not rows."""
        return self.mount.site.kind == TOKENS


def plan_heads(
    forward: Forward,
    slots: Sequence[int],
    lengths: Sequence[int],
    tokens: int,
    pools: Mapping[int, str],
    keys: Keys | None,
) -> Heads:
    """
    Args:
        tokens: how many hidden states there will be, padding included.
        pools: how each slot pools.
    """
    n = len(slots)
    size = bucket(n, 8) if forward.kernels else n
    counts = torch.zeros(size, dtype=torch.long)
    counts[:n] = torch.tensor(lengths)
    first = (counts.cumsum(0) - counts).where(counts > 0, 0)  # of a row of padding: any token that there is
    tables = {"first": first, "last": (first + counts - 1).clamp(min=0), "counts": counts}
    number = {slot: POOLS.index(pools[slot]) for slot in dict.fromkeys(slots)}
    tables["pool"] = torch.tensor([number[slot] for slot in slots] + [0] * (size - n))
    ways = {pools[slot] for slot in number}
    if ways != {"tokens"}:
        row_keys = None if keys is None else keys.for_rows()
        rows = forward.tables(Segments(slots, [1] * n), row_keys, size, (ROWS, "pooler"))
        tables |= {f"rows {name}": table for name, table in rows.items()}
    if "tokens" in ways:
        found = forward.tables(Segments(slots, lengths), keys, tokens, (TOKENS,))
        tables |= {f"tokens {name}": table for name, table in found.items()}
    return Heads(slots, lengths, pools, keys, tables)


def answer(forward: Forward, heads: Heads, states: Tensor, tables: Mapping[str, Tensor]) -> list[Output]:
    """The logits of every head.

    Args:
        states: [tokens, d] in the order of the rows.
        tables: those of `heads`, on the device.
    """
    found: list[Output] = []
    ones = [1] * len(heads.slots)
    for place, counts, prefix in ((ROWS, ones, "rows "), (TOKENS, heads.lengths, "tokens ")):
        own = {name.removeprefix(prefix): table for name, table in tables.items() if name.startswith(prefix)}
        if place == ROWS and heads.kinds:
            x = _pooled(forward, heads, states, tables, own)
        elif place == TOKENS and "tokens" in heads.pools.values():
            x = states
        else:
            continue
        p = head_dropout(forward.base)
        if heads.keys is not None and p:
            x = keyed_dropout(x, own["key"], own["local"], forward.wiring.head_place, p)
        state = BankPass(forward.bank, Segments(heads.slots, counts), heads.keys, own)
        found += _heads(forward, place, x, state)
    return found


def by_row(outputs: Sequence[Output], heads: Heads, widths: Mapping[int, int]) -> list[Tensor]:
    """Every row's logits [labels], or [tokens, labels], in the order they were run; `widths` are the slots' own."""
    rows: list[Tensor] = []
    token = 0
    of_slot = {(slot, output.per_token): output for output in outputs for slot in output.slots}
    for slot, some in itertools.groupby(heads.slots):
        row, lengths = len(rows), heads.lengths[len(rows) : len(rows) + len(list(some))]
        per_token = heads.pools[slot] == "tokens"
        output = of_slot[slot, per_token]
        count, first = (sum(lengths), token) if per_token else (len(lengths), row)
        mine = output.values[first - output.start : first - output.start + count, : widths[slot]]
        rows += torch.split(mine, list(lengths)) if per_token else mine.unbind()
        token += sum(lengths)
    return rows


def head_dropout(base: Base) -> float:
    """The dropout in front of a head: what the checkpoint's own head would have."""
    config = config_of(base.model)
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "resid_pdrop"):
        if isinstance(p := getattr(config, name, None), float):
            return p
    return 0.0


def _pooled(
    forward: Forward, heads: Heads, states: Tensor, tables: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> Tensor:
    """[rows, d], each row pooled as its adapter wants; `tokens` rows are not used."""
    by_kind = {kind: pool_rows(states, kind, tables) for kind in heads.kinds}
    if "pooler" in by_kind:
        by_kind["pooler"] = _pooler(forward, heads, by_kind["pooler"], own)
    (_, pooled), *others = by_kind.items()
    for kind, rows in others:
        pooled = torch.where((tables["pool"] == POOLS.index(kind)).unsqueeze(1), rows, pooled)
    return pooled


def _pooler(forward: Forward, heads: Heads, first: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    """The checkpoint's pooler on [rows, d], with whatever adapters have changed in it."""
    site = forward.base.sites.at("pooler")
    assert site is not None
    model, wiring = forward.base.model, forward.wiring
    leaf = model.get_submodule(site.path)
    activation = model.get_submodule(forward.base.sites.arch.pooler_activation)
    slots, ones = heads.slots, [1] * len(heads.slots)
    if not forward.weights.keys() & set(slots):
        with wiring.running(BankPass(forward.bank, Segments(slots, ones), heads.keys, own, pooler=True)):
            return activation(leaf(first))  # type: ignore[no-any-return]
    parts: list[Tensor] = []
    for start, end, slot in Segments(slots, ones).runs:
        rows = first[start:end]
        with wiring.running(BankPass(forward.bank, Segments([slot], [end - start]), heads.keys, pooler=True)):
            changed: Mapping[str, Tensor] = {}
            if slot in forward.weights:
                changed = forward.weights[slot].effective(forward.base, slot, heads.keys, within=f"{site.path}.")
            weights = {n.removeprefix(f"{site.path}."): w for n, w in changed.items()}
            parts.append(call_with(weights, leaf, leaf.forward, (rows,), {}))
    parts.append(first[len(slots) :])
    return activation(torch.cat(parts))  # type: ignore[no-any-return]


def _heads(forward: Forward, place: str, x: Tensor, state: BankPass) -> list[Output]:
    found: list[Output] = []
    for mount in forward.bank.mounts.get(place, ()):
        route = state.route(mount)
        if route is not None:
            start, end = route.span or (0, len(x))
            mine = x[start:end]
            values = mount.group.delta.difference(route, mount.tensors(), Signal(mount.site, mine, mine))
            found.append(Output(values, start, mount))
    return found
