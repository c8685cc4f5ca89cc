"""What the model is given: the rows of a batch as packed tokens, or as padded rows, in tables.

With room (`roomy`) packed tokens are padded at their end to a bucket. The padding forms rows of its own, so it costs a
little and changes nothing; batches of about the same size then have the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from inlay.bank.tables import bucket
from inlay.base.attention import BackEnd, Rows, back_end
from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.data.batch import Batch, repeated

_STEP = 128
"""Tokens; the finest bucket."""
_SHORT = 128
"""Rows up to here count as equally long; the kernel for short rows follows their own lengths."""


@dataclass(frozen=True)
class Layout:
    """Where the tokens of some rows are, as the model sees them."""

    tables: dict[str, Tensor]
    counts: Sequence[int]
    """How many of the model's tokens every row has."""
    tokens: int
    """How many the model has, padding included."""
    rows: Sequence[int] | None = None
    """Packed: the lengths of all rows, those of padding at the end included; None where rows are padded."""
    longest: int = 0
    back_end: BackEnd = "buckets"

    def spread(self, values: Tensor, rest: int) -> Tensor:
        """Numbers of the true tokens where the model has them, and `rest` in the padding of padded rows."""
        return torch.full((self.tokens,), rest).index_copy_(0, self.tables["valid"], values.long())

    @property
    def is_fixed(self) -> bool:
        """Whether the model needs the tables alone, not this batch's own lengths."""
        return self.rows is not None and self.back_end != "buckets"

    def inputs(self, base: Base, tables: Mapping[str, Tensor]) -> dict[str, Any]:
        """The model's arguments, from these tables on its device."""
        shape = (1, -1) if self.rows is not None else (len(self.counts), -1)
        found: dict[str, Any] = {"use_cache": False} if base.sites.arch.decoder else {}
        found["input_ids"] = tables["ids"].view(shape)
        found["position_ids"] = tables["positions"].view(shape)
        if base.sites.arch.token_types:
            found["token_type_ids"] = tables["types"].view(shape)
        if self.rows is None:
            return found | {"attention_mask": tables["mask"].view(shape)}
        # four dimensions: taken as a finished mask, so none is built; packed attention does not read it
        found["attention_mask"] = torch.zeros(1, 1, 1, 1, device=base.device, dtype=base.dtype)
        return found | {"inlay_rows": Rows(self.rows, base.device, tables["ends"], self.longest, self.back_end)}


def packed_layout(base: Base, batch: Batch, kernels: bool, roomy: bool) -> Layout:
    """One [1, tokens] row, with the true row boundaries for attention."""
    tokens, longest = int(batch.ids.numel()), max(batch.lengths)
    size, rows = tokens, list(batch.lengths)
    if roomy:
        longest = max(_SHORT, 1 << (longest - 1).bit_length())
        size = bucket(tokens, _STEP)
        full, rest = divmod(size - tokens, longest)
        rows += [longest] * full + [rest] * bool(rest)
        room = bucket(len(batch.lengths) + -(-max(_STEP, size // 16) // longest), 8)
        rows += [0] * (room - len(rows))
    lengths = torch.tensor(rows)
    ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    steps = torch.arange(tokens) - repeated(ends[:-1], lengths)[:tokens]
    tables = {
        "ids": _filled(batch.ids, size, _padding(base)),
        "positions": _filled(steps, size, 0) + first_position(base),  # of padding: any that there is
        "ends": ends,
    }
    by = back_end(base.model, longest, kernels)
    return Layout(tables | _types(base, batch.types, size), batch.lengths, size, rows, longest, by)


def padded_layout(base: Base, batch: Batch) -> Layout:
    """[rows, longest] with a mask, and where the true tokens are in it."""
    lengths = torch.tensor(batch.lengths).unsqueeze(1)
    width = int(lengths.max())
    steps = torch.arange(width).unsqueeze(0)
    mask = steps < lengths
    size = mask.numel()
    valid = mask.flatten().nonzero().squeeze(1)

    layout = Layout({"valid": valid}, [width] * len(batch.lengths), size)
    tables = {
        "ids": layout.spread(batch.ids, _padding(base)),
        "positions": (steps + first_position(base)).expand(mask.shape).reshape(-1),
        "mask": mask.reshape(-1),
    }
    types = None if batch.types is None else layout.spread(batch.types, 0)
    return replace(layout, tables=layout.tables | tables | _types(base, types, size))


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


def _types(base: Base, types: Tensor | None, size: int) -> dict[str, Tensor]:
    if not base.sites.arch.token_types:
        return {}
    return {"types": torch.zeros(size, dtype=torch.long) if types is None else _filled(types, size, 0)}


def _filled(values: Tensor, size: int, rest: int) -> Tensor:
    return values if len(values) == size else torch.nn.functional.pad(values, (0, size - len(values)), value=rest)


def _padding(base: Base) -> int:
    return getattr(config_of(base.model), "pad_token_id", None) or 0
