"""Pooling: from the hidden states of a row to one vector.

    cls      the first token           last    the last token (decoders)
    mean     the mean over tokens      pooler  the first token through the checkpoint's own pooler
    tokens   no pooling: every token gets an answer

`auto` takes what the checkpoint was trained with: what a sentence encoder's folder says, else cls for encoders and last
for decoders.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from inlay import heads
from inlay.base.load import Base
from inlay.errors import SpecError, suggest

POOLS = (*heads.POOLS, "tokens")


def choose(pool: str, base: Base) -> str:
    """Resolve `auto`, and refuse a pooling that the base cannot do."""
    if pool not in POOLS:
        raise SpecError(f"unknown pooling {pool!r}. {suggest(pool, POOLS)}")
    if pool == "pooler" and base.sites.at("pooler") is None:
        raise SpecError(f"{base.name} has no pooler; use cls, mean or last")
    if pool != "auto":
        return pool
    if base.folder is not None and (file := base.folder / "1_Pooling" / "config.json").is_file():
        try:
            modes = dict(json.loads(file.read_bytes()))
        except (OSError, TypeError, ValueError) as error:
            raise SpecError(f"cannot read how {base.name} pools ({file}: {error}); choose cls, mean or last") from None
        pools = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
        for mode, name in pools.items():
            if modes.get(mode):
                return name
        if modes.get("pooling_mode") in ("cls", "mean", "last"):
            return str(modes["pooling_mode"])
        raise SpecError(f"{base.name} pools in a way that Inlay does not have ({file}); choose cls, mean or last")
    return "last" if base.sites.arch.decoder else "cls"


def pool_rows(states: Tensor, way: str, first: Tensor, last: Tensor, counts: Tensor) -> Tensor:
    """states [tokens, d] -> [rows, d]; for `pooler` this is its input, the first token.

    Args:
        first, last, counts: [rows] the first and last token of every row, and how many it has.
    """
    if way == "mean":
        total = torch.segment_reduce(states.float(), "sum", lengths=counts.long(), axis=0, unsafe=True)
        return (total / counts.clamp(min=1).unsqueeze(1)).to(states.dtype)
    at = last if way == "last" else first
    # index_select is faster on the CPU, but on CUDA it adds up gradients in any order
    return states[at] if states.is_cuda else states.index_select(0, at)
