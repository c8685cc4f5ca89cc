"""Plans a forward pass, on the host and by array operations, before anything runs.

Rows are sorted by slot, so every slot owns one run of tokens. All rows of the bank and of the bare base share a pass;
an adapter that must be alone in its pass (weight-level ones, DeBERTa's shared keys) has one of its own. The model is
given packed tokens where its attention allows it, else padded rows; results are the same.

With kernels, sizes are rounded up (`rounded`), and the padding forms rows of its own: it costs a little, changes
nothing, and batches of about one size have one shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.bank.bank import Bank
from inlay.bank.noise import Keys
from inlay.bank.plan import Noise, Owners, PassPlan, Runs, Tiles, Tokens
from inlay.base.attention import BackEnd, RowBounds, back_end
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Array, Batch, ramp

_TOKENS = 128
"""Numbers of tokens are rounded up to multiples of this at least."""
_SHORT = 128
"""Rows up to here count as equally long; the kernel for short rows follows their own lengths."""
_MANY = 8192
"""From this many tokens on, sizes are rounded more finely: the sum of many rows varies less."""

_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")


def rounded(n: int, least: int) -> int:
    """A size rounded up to a multiple of `least`, or of an eighth of its leading power of two, if that is more; a
    sixteenth for many."""
    step = max(least, 1 << max(0, n.bit_length() - (4 if n < _MANY else 5)))
    return -(-n // step) * step


@dataclass(frozen=True)
class InputSpec:
    """What input a base takes; looked up once."""

    base: Base
    vocabulary: int
    longest: int | None
    """The most tokens a row may have; None where positions are only relative."""
    first_position: int
    padding: int
    has_types: bool
    no_mask: Tensor
    """Four dimensions make it a finished mask, so none is built; packed attention does not read it."""
    attention_dropout: float = 0.0
    """The checkpoint's dropout of attention probabilities."""
    _back_ends: dict[tuple[int, bool], BackEnd] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, base: Base) -> InputSpec:
        """The input spec of a base."""
        config = config_of(base.model)
        padding = getattr(config, "pad_token_id", None) or 0
        has_types = base.sites.arch.token_types
        rates = (getattr(config, name, None) for name in _ATTENTION_DROPOUT)
        drops = next((float(p) for p in rates if isinstance(p, int | float)), 0.0)
        limits = longest_row(base), first_position(base)
        no_mask = torch.zeros(1, 1, 1, 1, device=base.device, dtype=base.dtype)
        return cls(base, int(config.vocab_size), *limits, padding, has_types, no_mask, drops)

    def back_end(self, longest: int, kernels: bool) -> BackEnd:
        """What runs attention over packed rows of this length."""
        if (longest, kernels) not in self._back_ends:
            biased = self.base.sites.arch.position_bias is not None
            self._back_ends[longest, kernels] = back_end(self.base.model, longest, kernels, biased)
        return self._back_ends[longest, kernels]


def plan_passes(
    spec: InputSpec,
    bank: Bank,
    batch: Batch,
    slots: Array,
    keys: Keys | None,
    packed: bool,
    kernels: bool,
) -> list[PassPlan[Array]]:
    """The passes of a batch; `slots` holds the slot of every row."""
    plans = []
    drops = _drops_attention(spec, bank, slots, keys)
    for rows in _passes(bank, slots, drops):
        in_order = len(rows) == len(slots) and bool((rows[:-1] < rows[1:]).all())
        pass_slots, pass_batch = slots[rows], batch if in_order else batch.take(rows)
        drop = spec.attention_dropout if drops is not None and bool(drops[rows[0]]) else 0.0
        tokens = packed_tokens(spec, pass_batch, kernels) if packed and not drop else padded_tokens(spec, pass_batch)
        plans.append(_plan(bank, tokens, pass_batch, pass_slots, rows, keys, kernels, drop))
    return plans


def _drops_attention(spec: InputSpec, bank: Bank, slots: Array, keys: Keys | None) -> Array | None:
    """[rows] whether a row trains with dropout of attention probabilities, and so is padded; None if none does."""
    if keys is None or not keys.attention_dropout or not spec.attention_dropout:
        return None
    drops = np.isin(slots, list(keys.attention_dropout - _without_dropout(bank, keys)))
    return drops if drops.any() else None


def _without_dropout(bank: Bank, keys: Keys) -> frozenset[int]:
    """Slots that train without dropout: those in `keys.without_dropout`, and those with mixout."""
    return keys.without_dropout.union([s for s in bank.special if bank.slots[s].without_dropout])


def _passes(bank: Bank, slots: Array, drops: Array | None) -> list[Array]:
    """Which rows run together, each pass sorted by slot."""
    if drops is None:
        return _together(bank, slots)
    parts = [np.flatnonzero(drops == kind) for kind in (False, True)]
    return [part[rows] for part in parts if len(part) for rows in _together(bank, slots[part])]


def _together(bank: Bank, slots: Array) -> list[Array]:
    bounds = _bounds(slots)
    slot_of_run: list[int] = slots[bounds[:-1]].tolist()
    rank_of_row = np.array([bank.ranks[slot] for slot in slot_of_run]).repeat(bounds[1:] - bounds[:-1])
    order = rank_of_row.argsort(kind="stable")
    special = bank.special.intersection(slot_of_run) if bank.special else ()
    is_alone = np.isin(slots[order], [slot for slot in special if bank.slots[slot].alone]) if special else None
    if is_alone is None or not is_alone.any():
        return [order]
    alone, together = order[is_alone], order[~is_alone]
    passes = np.split(alone, np.flatnonzero(np.diff(rank_of_row[alone])) + 1)
    return [together, *passes] if len(together) else passes


def _plan(
    bank: Bank,
    tokens: Tokens[Array],
    batch: Batch,
    slots: Array,
    rows: Array,
    keys: Keys | None,
    kernels: bool,
    drop: float,
) -> PassPlan[Array]:
    owners = owners_of(bank, slots)
    special = [bank.slots[slot] for slot in bank.special.intersection(owners.slots)] if bank.special else []
    alone = owners.slots[0] if special and special[0].alone else None
    bounds = owners.bounds * tokens.longest if tokens.ends is None else tokens.ends[owners.bounds]
    runs = plan_runs(bank, owners, bounds, "layers", tokens.size if kernels and alone is None else None)
    noise = None
    if keys is not None:
        true = ends_of(batch.lengths)[owners.bounds]
        noise = plan_noise(bank, owners, true, keys, keys.tokens_before, tokens.size)
        if tokens.valid is not None:
            key, local = np.zeros(tokens.size, dtype=np.int32), np.full(tokens.size, -1, dtype=np.int32)
            key[tokens.valid], local[tokens.valid] = (a[: len(batch.ids)] for a in (noise.key, noise.local))
            noise = Noise(key, local)
    varies = batch.states is not None
    for record in special:
        varies |= record.has_gates if record.weights is None else False
        varies |= (keys is not None and record.draws) or (record.alone and record.weights is None)
    is_fixed = kernels and not varies and tokens.valid is None and tokens.back_end != "buckets"
    begin = None if batch.states is None else (batch.layer, batch.states)
    return PassPlan(tokens, runs, noise, alone, is_fixed, drop, rows, batch.lengths, owners, keys, begin)


def plan_runs(bank: Bank, owners: Owners, bounds: Array, stage: str, size: int | None) -> Runs[Array]:
    """
    Args:
        bounds: [runs + 1] where the tokens of each slot begin and end.
        stage: only groups that act there count.
        size: how many tokens there are with their padding, for kernels; None where routes are segments.
    """
    groups, entries = bank.acting(owners.entries, stage)
    state = tuple([(group.number, group.version) for group in groups])
    tiles = None if size is None else _tiles(bounds, entries, size)
    return Runs(state, tiles, owners.slots, bounds, entries)


def plan_noise(
    bank: Bank, owners: Owners, bounds: Array, keys: Keys, before: Mapping[int, int], size: int
) -> Noise[Array]:
    """
    Args:
        bounds: [runs + 1] where the tokens of each slot begin and end.
        before: how many of a slot's tokens come before those here.
        size: of the arrays; the rest is padding.
    """
    quiet = _without_dropout(bank, keys)
    trains = [slot in keys.of_slot and slot not in quiet for slot in owners.slots]
    numbers = [keys.number(slot) if noisy else 0 for slot, noisy in zip(owners.slots, trains, strict=True)]
    starts = bounds[:-1] - [before.get(slot, 0) for slot in owners.slots] if before else bounds[:-1]
    counts, tokens = np.diff(bounds), int(bounds[-1])
    key, local = np.zeros(size, dtype=np.int32), np.full(size, -1, dtype=np.int32)
    key[:tokens] = np.repeat(np.array(numbers).astype(np.int32), counts)
    local[:tokens] = np.where(np.repeat(trains, counts), np.arange(tokens) - np.repeat(starts, counts), -1)
    return Noise(key, local)


def owners_of(bank: Bank, slots: Array) -> Owners:
    """The owners of rows with these slots, which are sorted."""
    bounds = _bounds(slots)
    slot_of_run: list[int] = slots[bounds[:-1]].tolist()
    return Owners(slot_of_run, bounds, bank.entries(slot_of_run))


def _bounds(slots: Array) -> Array:
    """[runs + 1] where the slot changes, and both ends."""
    differ = np.ones(len(slots) + 1, dtype=bool)
    differ[1:-1] = slots[1:] != slots[:-1]
    return differ.nonzero()[0]


def ends_of(counts: Array) -> Array:
    """[rows + 1] where rows begin and end."""
    ends = np.zeros(len(counts) + 1, dtype=np.int64)
    counts.cumsum(out=ends[1:])
    return ends


def block_for(tokens: int) -> int:
    """How many tokens a tile holds: small tiles for few tokens, so that the whole device has work."""
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


def packed_tokens(spec: InputSpec, batch: Batch, kernels: bool) -> Tokens[Array]:
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
    ends = ends_of(lengths)
    positions = np.zeros(size, dtype=np.int32)
    positions[:count] = np.arange(count) - ends[: len(batch.lengths)].repeat(batch.lengths)
    positions += spec.first_position  # padding may have any position that exists
    types = np.zeros(size, dtype=np.int32) if spec.has_types else None
    if types is not None and batch.types is not None:
        types[:count] = batch.types
    ids = np.full(size, spec.padding, dtype=np.int32)
    ids[:count] = batch.ids
    back_end = spec.back_end(longest, kernels)
    return Tokens(ids, positions, types, ends, None, None, size, 1, longest, back_end, lengths)


def padded_tokens(spec: InputSpec, batch: Batch) -> Tokens[Array]:
    """[rows, longest] with a mask, and where the true tokens are in it."""
    rows, longest = len(batch.lengths), int(batch.lengths.max())
    mask = (np.arange(longest) < batch.lengths[:, None]).reshape(-1)
    valid = np.flatnonzero(mask)
    ids = np.full(mask.size, spec.padding, dtype=np.int32)
    ids[valid] = batch.ids
    types = np.zeros(mask.size, dtype=np.int32) if spec.has_types else None
    if types is not None and batch.types is not None:
        types[valid] = batch.types
    positions = np.tile(np.arange(longest) + spec.first_position, rows)
    lengths = np.full(rows, longest)
    return Tokens(ids, positions, types, None, mask, valid, mask.size, rows, longest, "buckets", lengths)


def model_inputs(spec: InputSpec, tokens: Tokens[Tensor]) -> dict[str, Any]:
    """The model's arguments, from a plan on its device."""
    shape = (tokens.rows, -1)
    inputs: dict[str, Any] = {"use_cache": False} if spec.base.sites.arch.decoder else {}
    inputs["input_ids"] = tokens.ids.view(shape)
    inputs["position_ids"] = tokens.positions.view(shape)
    if tokens.types is not None:
        inputs["token_type_ids"] = tokens.types.view(shape)
    if tokens.mask is not None:
        return inputs | {"attention_mask": tokens.mask.view(shape)}
    inputs["attention_mask"] = spec.no_mask
    rows = RowBounds(tokens.lengths.tolist(), tokens.ids.device, tokens.ends, tokens.longest, tokens.back_end)
    return inputs | {"inlay_rows": rows}


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
