"""From texts to answers, for any mix of adapters: encode as each task does, run packed batches, decode.

The three steps can be taken from different threads (`inlay.cli.pipeline`): only the second one needs the model, and
the first one needs a tokenizer to itself, in which truncation is a state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from inlay.base.load import load_tokenizer
from inlay.data.batch import Array, Batch
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.ensembles import repeated
from inlay.engine.run import pooled_logits
from inlay.engine.translate import Translator, answers_of
from inlay.errors import InlayError
from inlay.tasks import Answer, Example, Row
from inlay.tasks._packed import PackedRows, PooledOutputs

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.engine.loaded import Loaded

Request = tuple[str, Any]
"""(adapter, text | (text, text) | list of words | mapping | Example)."""

TOKENS = {"cuda": 65536}
"""Tokens of one batch without gradients; 4096 where nothing else is said: what caches of a CPU hold best."""
_DEFAULT_LIMIT = 512


@dataclass(frozen=True)
class Encoded:
    """Requests as rows of token ids, and all that decoding needs beside the logits of these rows."""

    translators: Sequence[Translator]
    examples: Sequence[Example]
    rows: Sequence[Sequence[Row]]
    """Of every example: one, or one for each window."""
    has_ensembles: bool = False


def predict(
    host: Host,
    requests: Sequence[Request],
    *,
    top_k: int | None = None,
    threshold: float | str | None = None,
    raw: bool = False,
) -> list[Answer]:
    """See `Host.predict`."""
    options = AnswerOptions(top_k, threshold, raw)
    # 1. Texts become rows of token ids, those that are read alike in one call of the tokenizer.
    encoded = encode(host, requests)
    options.check({one.name: one.task.kind for one in encoded.translators})
    # 2. and 3. Rows are put into batches by length, planned and run: the logits of every row, on the CPU.
    outputs = run(host, encoded)
    # 4. Logits become answers, those of one kind of task together.
    return list(decode(host, encoded, outputs, options))


def encode(host: Host, requests: Sequence[Request], tokenizer: Any = None) -> Encoded:
    """Step 1.

    Args:
        tokenizer: one that no other thread uses; the base's own by default.
    """
    if [one for one in requests if not isinstance(one, tuple) or len(one) != 2]:
        raise InlayError("requests are a list of (adapter, text)")
    by_name = {name: host.translator(name) for name in dict.fromkeys([name for name, _ in requests])}
    translators = [by_name[name] for name, _ in requests]
    examples = [
        Example(what)
        if type(what) is str and one.takes_text
        else what
        if type(what) is Example and what.pair is None and one.takes_text
        else one.example(what)
        for one, (_, what) in zip(translators, requests, strict=True)
    ]
    rows = _rows(host, by_name, translators, examples, tokenizer or load_tokenizer(host.base))
    return Encoded(translators, examples, rows, bool([1 for one in by_name.values() if one.members]))


def run(host: Host, encoded: Encoded) -> Sequence[Sequence[Tensor]]:
    """Steps 2 and 3: the logits of every example's rows, on the CPU."""
    rows = encoded.rows
    if encoded.has_ensembles:
        members, (seen,), counts = repeated(encoded.translators, rows)
        of_member = iter(run(host, Encoded(members, encoded.examples, seen)))
        return [[out for _ in range(count) for out in next(of_member)] for count in counts]
    if isinstance(rows, PackedRows):
        names = [one.name for one in encoded.translators]
        records = {name: host.loaded(name) for name in dict.fromkeys(names)}
        if all_pooled(records.values()):
            return _pooled(host, rows, names, [records[name].width for name in names])
    if max(map(len, rows), default=1) == 1:
        return [[out] for out in run_rows(host, [own[0] for own in rows], [one.name for one in encoded.translators])]
    names = [one.name for one, own in zip(encoded.translators, rows, strict=True) for _ in own]
    ran = iter(run_rows(host, [row for own in rows for row in own], names))
    return [[next(ran) for _ in own] for own in rows]


def _pooled(host: Host, rows: PackedRows, names: Sequence[str], widths: Sequence[int]) -> PooledOutputs:
    """The logits of packed rows, all of which are pooled; `widths` says how many labels each row's adapter has."""
    widest, each = max(widths), np.array(widths)
    logits = np.empty((len(names), widest), np.float32)
    for numbers, values in pooled_blocks(host, rows.batch, rows.examples, names):
        columns = min(widest, values.shape[1])
        logits[numbers, :columns] = values[:, :columns]
    if min(widths) < widest:
        logits[np.arange(widest) >= each[:, None]] = -np.inf
    return PooledOutputs(torch.from_numpy(logits), each)


def decode(
    host: Host, encoded: Encoded, outputs: Sequence[Sequence[Tensor]], options: AnswerOptions
) -> Sequence[Answer]:
    """Step 4."""
    return answers_of(encoded.translators, outputs, encoded.rows, encoded.examples, host.base, options)


def _rows(
    host: Host,
    by_name: Mapping[str, Translator],
    translators: Sequence[Translator],
    examples: Sequence[Example],
    tokenizer: Any,
) -> Sequence[Sequence[Row]]:
    """The rows of every example. A tokenizer is fast with many texts at once: those that are read alike go together."""
    if len({one.asked_key for one in by_name.values()}) == 1 and not [1 for one in examples if one.target is not None]:
        first = translators[0]
        if (batch := first.packed(tokenizer, examples, row_limit(host, first.task.max_length, tokenizer))) is not None:
            return PackedRows(batch)
    alike: dict[Hashable, list[int]] = {}
    for i, (one, example) in enumerate(zip(translators, examples, strict=True)):
        alike.setdefault(one.name if example.target is not None else one.asked_key, []).append(i)
    rows: list[list[Row]] = [[]] * len(examples)
    for own in alike.values():
        one, some = translators[own[0]], [examples[i] for i in own]
        limit = row_limit(host, one.task.max_length, tokenizer)
        for i, found in zip(own, one.rows(tokenizer, some, limit), strict=True):
            rows[i] = found
    return rows


def limit_of(host: Host, name: str) -> int:
    """The longest row an adapter sees, in tokens."""
    return row_limit(host, host.task(name).max_length)


def row_limit(host: Host, asked: int | None, tokenizer: Any = None) -> int:
    """A length in tokens that the base can take; an error if more is asked for."""
    most = longest(host, tokenizer or load_tokenizer(host.base))
    if asked is not None and asked > most:
        raise InlayError(f"max_length={asked} is more than {host.base.name} takes: {most}")
    return min(most, _DEFAULT_LIMIT) if asked is None else asked


def longest(host: Host, tokenizer: Any) -> int:
    """The longest row that base and tokenizer take."""
    return min(n for n in (host.forward.spec.longest, tokenizer.model_max_length) if n is not None)


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
    for some in cut([len(row.ids) for row in rows], tokens):
        if before_batch is not None:
            before_batch()
        batch = some.tolist()
        for i, logits in zip(batch, _logits(host, [rows[i] for i in batch], [names[i] for i in batch]), strict=True):
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
    return TOKENS.get(host.forward.bank.device.type, 4096)


def batch_of(rows: Sequence[Row]) -> Batch:
    """A batch of these rows."""
    return Batch.of([row.ids for row in rows], [row.types for row in rows])


def all_pooled(records: Iterable[Loaded]) -> bool:
    """Whether all these adapters answer for whole rows."""
    return not [record for record in records if record.pool == "tokens" or record.head is None]


def pooled_blocks(
    host: Host, batch: Batch, rows: Array, names: Sequence[str], before_batch: Callable[[], None] | None = None
) -> Iterator[tuple[Array, Array]]:
    """(which of these rows, [those, columns] their logits) for one group of heads after the other, from as many batches
    as it takes; columns beyond the labels of a row's adapter mean nothing.

    Args:
        rows: numbers of the batch's rows; one may come several times, for several adapters, all of which are pooled.
        names: of the adapter of each.
        before_batch: called before every batch; if it raises an error, no more batches run.
    """
    for numbers in cut(batch.lengths[rows], budget(host)):
        if before_batch is not None:
            before_batch()
        for which, values in _blocks(host, batch.take(rows[numbers]), [names[i] for i in numbers.tolist()]):
            yield numbers[which], values


def _blocks(host: Host, batch: Batch, names: Sequence[str]) -> list[tuple[Array, Array]]:
    """One batch; in halves where memory does not suffice."""
    try:
        with host.lock:
            return pooled_logits(host, batch, names)
    except torch.OutOfMemoryError:
        if len(names) == 1:
            raise
    torch.cuda.empty_cache()  # not in the handler, where the failed batch is still alive
    half = len(names) // 2
    first, second = (
        _blocks(host, batch.take(np.arange(len(names))[own]), names[own]) for own in (slice(half), slice(half, None))
    )
    return first + [(which + half, logits) for which, logits in second]


def even_size(total: int, longest: int, tokens: int) -> int:
    """The tokens of a batch, where all are cut evenly: batches of one size have one shape, which is recorded once."""
    count = max(1, -(-total // tokens))
    return min(tokens, -(-total // count) + longest)


def cut(lengths: Sequence[int] | Array, tokens: int) -> Iterator[Array]:
    """The numbers of rows, longest first, in batches of about equal size and at most so many tokens (or one row)."""
    lengths = np.asarray(lengths, np.int64)
    order = (-lengths).argsort(kind="stable")
    ends = lengths[order].cumsum()
    start, before, tokens = 0, 0, even_size(int(ends[-1]), int(ends[0]), tokens) if len(ends) else tokens
    while start < len(order):
        end = max(start + 1, int(ends.searchsorted(before + tokens, side="right")))
        yield order[start:end]
        start, before = end, int(ends[end - 1])
