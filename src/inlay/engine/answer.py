"""From hidden states to logits: every row pooled as its adapter wants, every head on its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from inlay.bank.delta import Signal
from inlay.bank.forward import Forward, Hidden
from inlay.bank.noise import Keys
from inlay.bank.passes import BankPass, dropout_mask
from inlay.bank.route import Segments
from inlay.bank.weights import call_with
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.heads.head import ROWS, TOKENS
from inlay.heads.pool import pool_rows


def answer(forward: Forward, hidden: Hidden, pools: Mapping[int, str], keys: Keys | None) -> list[Tensor]:
    """One tensor per row in the order they were run: [bucket], or [tokens, bucket] for adapters that pool nothing.

    Args:
        pools: how each slot pools.
    """
    per_token = [pools[slot] == "tokens" for slot in hidden.slots]
    by_row: list[Tensor] = []
    by_token: list[Tensor] = []
    if not all(per_token):
        pooled = _pooled(forward, hidden, [pools[slot] for slot in hidden.slots], keys)
        ones = [1] * len(hidden.slots)
        by_row = _heads(forward, ROWS, _dropped(forward, pooled, hidden.slots, ones, keys), hidden.slots, ones)
    if any(per_token):
        states = _dropped(forward, hidden.states, hidden.slots, hidden.lengths, keys)
        by_token = _heads(forward, TOKENS, states, hidden.slots, hidden.lengths)
    return [by_token[i] if whole else by_row[i][0] for i, whole in enumerate(per_token)]


def _pooled(forward: Forward, hidden: Hidden, pools: Sequence[str], keys: Keys | None) -> Tensor:
    """[rows, d], each row pooled as its adapter wants; `tokens` rows are not used."""
    kinds = sorted(set(pools) - {"tokens"}) or ["cls"]
    by_kind = {kind: pool_rows(hidden.states, hidden.lengths, kind) for kind in kinds}
    if "pooler" in by_kind:
        by_kind["pooler"] = _pooler(forward, by_kind["pooler"], hidden.slots, keys)
    if len(kinds) == 1:
        return by_kind[kinds[0]]
    return torch.stack([by_kind[p if p != "tokens" else kinds[0]][i] for i, p in enumerate(pools)])


def _pooler(forward: Forward, first: Tensor, slots: Sequence[int], keys: Keys | None) -> Tensor:
    """The checkpoint's pooler on [rows, d], with whatever adapters have changed in it."""
    site = forward.base.sites.at("pooler")
    assert site is not None
    model, wiring = forward.base.model, forward.wiring
    leaf = model.get_submodule(site.path)
    parts: list[Tensor] = []
    for start, end, slot in Segments(slots, [1] * len(slots)).runs:
        weights = forward.weights.get(slot)
        rows = first[start:end]
        with wiring.running(BankPass(forward.bank, Segments([slot], [end - start]), keys, frozenset())):
            if weights is None:
                parts.append(leaf(rows))
            else:
                changed = weights.effective(forward.base, slot, keys, within=f"{site.path}.")
                own = {n.removeprefix(f"{site.path}."): w for n, w in changed.items()}
                parts.append(call_with(own, leaf, leaf.forward, (rows,), {}))
    activation = model.get_submodule(forward.base.sites.arch.pooler_activation)
    return activation(torch.cat(parts))  # type: ignore[no-any-return]


def head_dropout(base: Base) -> float:
    """The dropout in front of a head: what the checkpoint's own head would have."""
    config = config_of(base.model)
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "resid_pdrop"):
        if isinstance(p := getattr(config, name, None), float):
            return p
    return 0.0


def _dropped(forward: Forward, x: Tensor, slots: Sequence[int], lengths: Sequence[int], keys: Keys | None) -> Tensor:
    """The head's input with its dropout, keyed as all others are."""
    p = head_dropout(forward.base)
    if keys is None or p == 0:
        return x
    without = forward.without_dropout(keys)
    return x * dropout_mask(keys, Segments(slots, lengths), without, "dropout head", p, x).to(x.dtype)


def _heads(forward: Forward, place: str, x: Tensor, slots: Sequence[int], lengths: Sequence[int]) -> list[Tensor]:
    """Every row's logits [length, bucket], from all heads at this place."""
    segments = Segments(slots, lengths)
    rows: list[Tensor] = [x.new_zeros(0, 0)] * len(slots)
    for mount in forward.bank.mounts.get(place, ()):
        route = segments.route(mount.entry_of)
        if route is None:
            continue
        mine = x[route.start : route.start + route.tokens]
        out = mount.group.delta.difference(route, mount.tensors(), Signal(mount.site, mine, mine))
        mine_at = [i for i, slot in enumerate(slots) if slot in mount.slots]
        span = range(mine_at[0], mine_at[-1] + 1)
        for i, part in zip(span, torch.split(out, [lengths[i] for i in span]), strict=True):
            if slots[i] in mount.slots:
                rows[i] = part
    return rows
