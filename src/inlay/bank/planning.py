"""Plans a forward pass, on the host and by array operations, before anything runs.

Rows are sorted by slot, so every slot owns one run of tokens. All rows of the bank and of the bare base share a pass;
an adapter that must be alone in its pass (weight-level ones, DeBERTa's shared keys) has one of its own. The model is
given packed tokens where its attention allows it, else padded rows; results are the same.

With kernels, sizes are rounded up (`rounded`), and the padding forms rows of its own: it costs a little, changes
nothing, and batches of about one size have one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.bank.bank import BASE, Bank
from inlay.bank.noise import Keys
from inlay.bank.plan import Noise, PassPlan, Runs, Tiles, Tokens
from inlay.base.attention import Rows, back_end
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Array, Batch, ramp

_TOKENS = 128
"""The finest step of tokens."""
_SHORT = 128
"""Rows up to here count as equally long; the kernel for short rows follows their own lengths."""
_MANY = 8192
"""Tokens from which on sizes are rounded more finely: the sum of many rows varies less."""


def rounded(n: int, least: int) -> int:
    """A size rounded up to a multiple of `least`, or of an eighth of its leading power of two, if that is more; a
    sixteenth for many."""
    step = max(least, 1 << max(0, n.bit_length() - (4 if n < _MANY else 5)))
    return -(-n // step) * step


def plan_passes(
    base: Base, bank: Bank, batch: Batch, slots: Array, keys: Keys | None, packed: bool, kernels: bool
) -> list[PassPlan[Array]]:
    """The passes of a batch; `slots` has that of every row."""
    passes = _passes(bank, slots)
    return [_plan(base, bank, batch, rows, slots, keys, packed, kernels) for rows in passes]


def _passes(bank: Bank, slots: Array) -> list[Array]:
    """Which rows run together, each pass sorted by slot."""
    distinct, which = np.unique(slots, return_inverse=True)
    rank = np.array([bank.rank(slot) for slot in distinct.tolist()])
    is_alone = np.array([slot != BASE and bank.slots[slot].alone for slot in distinct.tolist()])
    of_row = rank[which]
    order = np.argsort(of_row, kind="stable")
    if not is_alone.any():
        return [order]
    lonely = is_alone[which[order]]
    alone = order[lonely]
    ends = np.flatnonzero(np.diff(of_row[alone])) + 1
    together = order[~lonely]
    return [*([together] if len(together) else []), *np.split(alone, ends)]


def _plan(
    base: Base, bank: Bank, batch: Batch, rows: Array, slots: Array, keys: Keys | None, packed: bool, kernels: bool
) -> PassPlan[Array]:
    in_order = len(rows) == len(batch.lengths) and bool((rows[:-1] < rows[1:]).all())
    own, some = slots[rows], batch if in_order else batch.take(rows)
    first = int(own[0])
    alone = first if first != BASE and bank.slots[first].alone else None
    tokens = packed_tokens(base, some, kernels) if packed else padded_tokens(base, some)
    counts = some.lengths if packed else np.full(len(rows), tokens.size // tokens.rows)
    runs = plan_runs(bank, own, counts, "layers", tokens.size if kernels and alone is None else None)
    noise = None
    if keys is not None:
        noise = plan_noise(bank, runs.slots, _bounds(own, some.lengths), keys, keys.tokens_before, tokens.size)
        if tokens.valid is not None:
            key, local = np.zeros(tokens.size, dtype=np.int32), np.full(tokens.size, -1, dtype=np.int32)
            key[tokens.valid], local[tokens.valid] = (a[: len(some.ids)] for a in (noise.key, noise.local))
            noise = Noise(key, local)
    begin = None if some.states is None else (some.layer, some.states)
    present = [bank.slots[slot] for slot in runs.slots if slot != BASE]
    varies = begin is not None or any(one.has_gates for one in present if one.weights is None)
    varies |= keys is not None and any(one.draws for one in present)
    varies |= alone is not None and bank.slots[alone].weights is None
    is_fixed = kernels and not varies and packed and tokens.back_end != "buckets"
    return PassPlan(tokens, runs, noise, alone, is_fixed, rows, some.lengths, own, keys, begin)


def plan_runs(bank: Bank, slots: Array, counts: Array, stage: str, size: int | None) -> Runs[Array]:
    """
    Args:
        slots: of every row, sorted.
        counts: how many tokens every row has.
        stage: where groups act that matter.
        size: how many tokens there are with their padding, for kernels; None where routes are segments.
    """
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    own, bounds = slots[starts].tolist(), _bounds(slots, counts)
    groups, entries = bank.entries(own, stage)
    state = tuple([group.state for group in groups])
    tiles = None if size is None else _tiles(bounds, entries, size)
    return Runs(state, tiles, own, bounds, entries)


def plan_noise(
    bank: Bank, slots: Sequence[int], bounds: Array, keys: Keys, before: Mapping[int, int], size: int
) -> Noise[Array]:
    """
    Args:
        slots, bounds: those of the runs.
        before: how many of a slot's tokens come before those here.
        size: of the arrays; the rest is padding.
    """
    trains = [slot in keys.of_slot and not _is_quiet(bank, slot, keys) for slot in slots]
    numbers = np.array([keys.number(slot) if noisy else 0 for slot, noisy in zip(slots, trains, strict=True)])
    starts = bounds[:-1] - [before.get(slot, 0) for slot in slots]
    counts, tokens = np.diff(bounds), int(bounds[-1])
    key, local = np.zeros(size, dtype=np.int32), np.full(size, -1, dtype=np.int32)
    key[:tokens] = np.repeat(numbers.astype(np.int32), counts)
    local[:tokens] = np.where(np.repeat(trains, counts), np.arange(tokens) - np.repeat(starts, counts), -1)
    return Noise(key, local)


def _is_quiet(bank: Bank, slot: int, keys: Keys) -> bool:
    """Whether a slot in training has no dropout."""
    return slot in keys.without_dropout or bank.slots[slot].without_dropout


def _bounds(slots: Array, counts: Array) -> Array:
    """[runs + 1] where the runs of rows that are sorted by slot begin and end."""
    ends: Array = np.concatenate(([0], counts.cumsum()))
    found: Array = ends[np.append(np.flatnonzero(np.diff(slots, prepend=-1)), len(slots))]
    return found


def block_for(tokens: int) -> int:
    """Tokens of a tile: few where there are few, so that all of the device has work."""
    return 16 if tokens <= 2048 else 32 if tokens <= 8192 else 64


def _tiles(bounds: Array, entries: Array, size: int) -> Tiles[Array]:
    runs, block = len(bounds) - 1, block_for(size)
    places = rounded(runs, 4)
    counts = np.diff(bounds)
    pieces = -(-counts // block)
    owner = np.repeat(np.arange(runs), pieces)
    first = ramp(pieces) * block + bounds[owner]
    tiles = np.zeros((size // block + places, 3), dtype=np.int32)
    tiles[: len(owner)] = np.stack([first, np.minimum(bounds[owner + 1] - first, block), owner], 1)
    place = np.full(size, -1, dtype=np.int32)
    place[: bounds[-1]] = np.repeat(np.arange(runs), counts)
    wide = np.pad(entries, ((0, 0), (0, places - runs)))
    return Tiles(np.pad(bounds, (0, places - runs), mode="edge"), tiles, place, wide, block)


def packed_tokens(base: Base, batch: Batch, kernels: bool) -> Tokens[Array]:
    """One row of all tokens, with the true row boundaries for attention."""
    count, longest, lengths = len(batch.ids), int(batch.lengths.max()), batch.lengths
    size = count
    if kernels and batch.states is None:
        longest = max(_SHORT, 1 << (longest - 1).bit_length())
        size = rounded(count, _TOKENS)
        full, rest = divmod(size - count, longest)
        padding = np.array([longest] * full + [rest] * bool(rest), dtype=np.int64)
        room = rounded(len(lengths) + -(-max(_TOKENS, size // 8) // longest), 8)
        lengths = np.concatenate([lengths, padding, np.zeros(room - len(lengths) - len(padding), dtype=np.int64)])
    positions = np.zeros(size, dtype=np.int32)  # of padding: any that there is
    positions[:count] = ramp(batch.lengths)
    ends = np.concatenate(([0], lengths.cumsum()))
    types = _filled(np.zeros(0) if batch.types is None else batch.types, size, 0) if _has_types(base) else None
    by = back_end(base.model, longest, kernels)
    ids = _filled(batch.ids, size, _padding(base))
    return Tokens(ids, positions + first_position(base), types, ends, None, None, size, 1, longest, by, lengths)


def padded_tokens(base: Base, batch: Batch) -> Tokens[Array]:
    """[rows, longest] with a mask, and where the true tokens are in it."""
    rows, longest = len(batch.lengths), int(batch.lengths.max())
    mask = (np.arange(longest) < batch.lengths[:, None]).reshape(-1)
    valid = np.flatnonzero(mask)
    ids = np.full(mask.size, _padding(base), dtype=np.int32)
    ids[valid] = batch.ids
    types = np.zeros(mask.size, dtype=np.int32) if _has_types(base) else None
    if types is not None and batch.types is not None:
        types[valid] = batch.types
    positions = np.tile(np.arange(longest) + first_position(base), rows)
    return Tokens(ids, positions, types, None, mask, valid, mask.size, rows, longest, "buckets", np.full(rows, longest))


def model_inputs(base: Base, tokens: Tokens[Tensor]) -> dict[str, Any]:
    """The model's arguments, from a plan on its device."""
    shape = (tokens.rows, -1)
    found: dict[str, Any] = {"use_cache": False} if base.sites.arch.decoder else {}
    found["input_ids"] = tokens.ids.view(shape)
    found["position_ids"] = tokens.positions.view(shape)
    if tokens.types is not None:
        found["token_type_ids"] = tokens.types.view(shape)
    if tokens.mask is not None:
        return found | {"attention_mask": tokens.mask.view(shape)}
    # four dimensions: taken as a finished mask, so none is built; packed attention does not read it
    found["attention_mask"] = torch.zeros(1, 1, 1, 1, device=base.device, dtype=base.dtype)
    rows = Rows(tokens.lengths.tolist(), base.device, tokens.ends, tokens.longest, tokens.back_end)
    return found | {"inlay_rows": rows}


def longest_row(base: Base) -> int | None:
    """The most tokens a row may have; None where positions are only relative."""
    config = config_of(base.model)
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or getattr(config, "position_biased_input", True) is False:
        return None
    return int(limit) - first_position(base)


def first_position(base: Base) -> int:
    """The number of a row's first position."""
    if base.sites.arch.first_position == "zero":
        return 0
    return int(config_of(base.model).pad_token_id) + 1


def _has_types(base: Base) -> bool:
    return base.sites.arch.token_types


def _filled(values: Array, size: int, rest: int) -> Array:
    filled = np.full(size, rest, dtype=np.int32)
    filled[: len(values)] = values
    return filled


def _padding(base: Base) -> int:
    return getattr(config_of(base.model), "pad_token_id", None) or 0
