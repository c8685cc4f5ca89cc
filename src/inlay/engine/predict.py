"""From texts to answers, for any mix of adapters: encode as each task does, run packed batches, decode.

Rows are sorted by length before they are cut into batches, so that a batch holds rows of one size and memory is bounded
by tokens, not by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.bank.planning import longest_row
from inlay.base.load import load_tokenizer
from inlay.data.batch import Batch
from inlay.engine.translate import Manner
from inlay.errors import InlayError
from inlay.tasks import Answer, Example, Row

if TYPE_CHECKING:
    from inlay.engine.host import Host

Request = tuple[str, Any]
"""(adapter, text | (text, text) | list of words | mapping | Example)."""

TOKENS = {"cuda": 65536}
"""Tokens of one batch without gradients; 8192 where nothing else is said."""
_DEFAULT_LIMIT = 512


def predict(
    host: Host,
    requests: Sequence[Request],
    *,
    top_k: int | None = None,
    threshold: float | None = None,
    raw: bool = False,
) -> list[Answer]:
    """See `Host.predict`."""
    manner = Manner(top_k, threshold, raw)
    if not all(isinstance(one, tuple) and len(one) == 2 for one in requests):
        raise InlayError("requests are a list of (adapter, text)")
    of = {name: host.translator(name) for name, _ in requests}
    examples = [(name, of[name].example(what)) for name, what in requests]
    ran = zip(examples, *run_examples(host, examples), strict=True)
    return [of[name].answer(out, own, example, host.base, manner) for (name, example), out, own in ran]


def limit_of(host: Host, name: str) -> int:
    """The longest row an adapter sees, in tokens."""
    return row_limit(host, host.task(name).max_length)


def row_limit(host: Host, asked: int | None) -> int:
    """A length in tokens that the base can take; an error if more is asked for."""
    most = [n for n in (longest_row(host.base), load_tokenizer(host.base).model_max_length) if n is not None]
    if asked is not None and asked > min(most):
        raise InlayError(f"max_length={asked} is more than {host.base.name} takes: {min(most)}")
    return min(*most, _DEFAULT_LIMIT) if asked is None else asked


def run_examples(host: Host, examples: Sequence[tuple[str, Example]]) -> tuple[list[list[Tensor]], list[list[Row]]]:
    """The outputs and the rows of every example."""
    tokenizer = load_tokenizer(host.base)
    keys = {name: _asked_key(host, name) for name in dict(examples)}
    alike: dict[Hashable, list[int]] = {}
    for i, (name, example) in enumerate(examples):
        alike.setdefault(name if example.target is not None else keys[name], []).append(i)
    rows: list[list[Row]] = [[] for _ in examples]
    for places in alike.values():  # a tokenizer is fast with many texts at once
        name, some = examples[places[0]][0], [examples[i][1] for i in places]
        for i, own in zip(places, host.translator(name).rows(tokenizer, some, limit_of(host, name)), strict=True):
            rows[i] = own
    flat = [(name, row) for (name, _), own in zip(examples, rows, strict=True) for row in own]
    ran = iter(run_rows(host, [row for _, row in flat], [name for name, _ in flat]))
    return [[next(ran) for _ in own] for own in rows], rows


def _asked_key(host: Host, name: str) -> Hashable:
    """Adapters with equal keys are asked in the same rows: its name, unless its task says what counts."""
    task = host.task(name)
    if task.asked_options is None:
        return name
    return limit_of(host, name), tuple((option, getattr(task, option)) for option in task.asked_options)


def run_rows(
    host: Host,
    rows: Sequence[Row],
    names: Sequence[str],
    tokens: int | None = None,
    before_batch: Callable[[], None] | None = None,
) -> list[Tensor]:
    """The logits of every row on the CPU, in order, from as many batches as it takes.

    Args:
        before_batch: called before every batch; what it raises ends it all.
    """
    tokens = tokens or budget(host)
    out: list[Tensor] = [torch.empty(0)] * len(rows)
    for chunk in chunks([len(row.ids) for row in rows], tokens):
        if before_batch is not None:
            before_batch()
        for i, logits in zip(chunk, _logits(host, [rows[i] for i in chunk], [names[i] for i in chunk]), strict=True):
            out[i] = logits
    return out


def _logits(host: Host, rows: Sequence[Row], names: Sequence[str]) -> list[Tensor]:
    """One batch; in halves where memory does not suffice, since training may have taken most of it."""
    try:
        return host.logits_on_cpu(batch_of(rows), names)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()  # not in the handler, where the failed batch is still alive
    half = len(rows) // 2
    return _logits(host, rows[:half], names[:half]) + _logits(host, rows[half:], names[half:])


def budget(host: Host) -> int:
    """How many tokens a batch without gradients has."""
    return TOKENS.get(host.base.device.type, 8192)


def batch_of(rows: Sequence[Row]) -> Batch:
    """A batch of these rows; tasks of different kinds agree on token types because one tokenizer made them."""
    types = [row.types for row in rows if row.types is not None]
    return Batch.of([row.ids for row in rows], types if len(types) == len(rows) else None)


def chunks(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut rows, longest first, into batches of at most so many tokens (or one row)."""
    out: list[list[int]] = []
    used = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not out or used + lengths[i] > tokens:
            out.append([])
            used = 0
        out[-1].append(i)
        used += lengths[i]
    return out
