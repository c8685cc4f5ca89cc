"""What the tasks over whole texts share: reading text columns, and rows for texts that may be too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.tasks import Example, Row, as_text


def text_example(record: Record, columns: Columns, target: Any) -> Example:
    """An example of one text or a pair."""
    pair = as_text(record, columns.pair) if columns.pair else None
    return Example(as_text(record, columns.text), pair, (), target, "", record.place)


def text_rows(
    tokenizer: Any,
    examples: Sequence[Example],
    limit: int,
    windows: bool,
    target: Callable[[Example], Any],
) -> list[Row]:
    """One row per example, cut at the limit; or, with `windows`, as many overlapping ones as it takes."""
    rows: list[Row] = []
    for begin in range(0, len(examples), 1000):  # the tokenizer runs over many texts at once, in parallel
        chunk = examples[begin : begin + 1000]
        pairs = [e.pair for e in chunk] if chunk[0].pair is not None else None
        # longest_first cannot give back the rest, so windows slide over the second text of a pair
        how: Any = True if not windows else ("only_second" if pairs else "only_first")
        options = {"return_overflowing_tokens": True, "stride": limit // 4} if windows else {}
        encoded = tokenizer([e.text for e in chunk], pairs, truncation=how, max_length=limit, **options)
        of_row = encoded["overflow_to_sample_mapping"] if windows else range(len(chunk))
        types = encoded.get("token_type_ids")
        for i, which in enumerate(of_row):
            kinds = None if types is None else types[i]
            rows.append(Row(encoded["input_ids"][i], kinds, target(chunk[which]), begin + which))
    return rows


def pooled(outputs: Sequence[Tensor]) -> Tensor:
    """One vector for an example: the mean over its windows, in fp32."""
    return torch.stack([o.float() for o in outputs]).mean(0)


def best_temperature(loss: Callable[[float], float]) -> float:
    """The temperature that makes a loss smallest: golden section over its logarithm, 0.05 to 20."""
    from math import exp, log, sqrt

    low, high = log(0.05), log(20.0)
    ratio = (sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(exp(a)), loss(exp(b))
    for _ in range(40):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(exp(a))
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(exp(b))
    return round(exp((low + high) / 2), 4)
