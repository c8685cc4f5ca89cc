"""Rows of random tokens whose lengths are those of real work: time depends on lengths, not on words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from inlay.errors import RunError, suggest

POOL = 50
"""Batches that rows are drawn for: a length-grouped sampler sorts this many at a time."""


def draw_lengths(kind: str, count: int, seed: int) -> list[int]:
    """`glue`: log-normal around 28 tokens, 5 to 128, GLUE's single sentences; `short`: 5 to 16, evenly."""
    random = torch.Generator().manual_seed(seed)
    if kind == "short":
        return [int(n) for n in torch.randint(5, 17, (count,), generator=random)]
    if kind != "glue":
        raise RunError(f"unknown kind of lengths {kind!r}. {suggest(kind, ('glue', 'short'))}")
    drawn = torch.exp(torch.randn(count, generator=random) * 0.5 + math.log(28))
    return [int(n) for n in drawn.round().clamp(5, 128)]


def lengths_of(file: str, text: str | None, tokenizer: Any, count: int, seed: int) -> list[int]:
    """The token lengths of a file's texts, drawn at random; every text comes up before one comes up again."""
    from inlay.data.record import Skipped
    from inlay.data.source import open_source
    from inlay.runs.prepare import read_examples
    from inlay.tasks import parse

    given = {"text": text} if text else {}
    examples, _ = read_examples(open_source(file), parse("mlm"), given, Skipped())
    encoded = tokenizer([example.text for example in examples], truncation=True, max_length=128)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    random = torch.Generator().manual_seed(seed)
    order = [i for _ in range(math.ceil(count / len(lengths))) for i in torch.randperm(len(lengths), generator=random)]
    return [lengths[int(i)] for i in order[:count]]


def draw_rows(lengths: Sequence[int], vocabulary: int, seed: int, longest: int | None = None) -> list[list[int]]:
    """Rows of these lengths, cut where the base takes no more; special tokens are not among them."""
    random = torch.Generator().manual_seed(seed)
    lowest = min(1000, vocabulary // 2)
    limit = longest or max(lengths)
    return [torch.randint(lowest, vocabulary, (min(n, limit),), generator=random).tolist() for n in lengths]
