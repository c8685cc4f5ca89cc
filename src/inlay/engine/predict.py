"""From texts to answers, for any mix of adapters: encode as each task does, run packed batches, decode.

The three steps can run in different threads (`inlay.cli.pipeline`): only the second needs the model, and the first
needs a tokenizer of its own, because truncation is a state of the tokenizer.
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
"""Tokens of one batch without gradients; 4096 for other devices, which suits the caches of a CPU best."""
_DEFAULT_LIMIT = 512


@dataclass(frozen=True)
class Encoded:
    """Requests as rows of token ids, and all that decoding needs apart from the logits of these rows."""

    translators: Sequence[Translator]
    examples: Sequence[Example]
    rows: Sequence[Sequence[Row]]
    """The rows of every example: one, or one for each window."""
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
    # 1. Texts become rows of token ids; texts that are encoded alike share a call of the tokenizer.
    encoded = encode(host, requests)
    options.check({translator.name: translator.task.kind for translator in encoded.translators})
    # 2. and 3. Rows are put into batches by length, planned and run: the logits of every row, on the CPU.
    outputs = run(host, encoded)
    # 4. Logits become answers, those of one kind of task together.
    return list(decode(host, encoded, outputs, options))


def encode(host: Host, requests: Sequence[Request], tokenizer: Any = None) -> Encoded:
    """Step 1.

    Args:
        tokenizer: one that no other thread uses; by default the base's own.
    """
    if [request for request in requests if not isinstance(request, tuple) or len(request) != 2]:
        raise InlayError("requests are a list of (adapter, text)")
    by_name = {name: host.translator(name) for name in dict.fromkeys([name for name, _ in requests])}
    translators = [by_name[name] for name, _ in requests]
    examples = [
        Example(content)
        if type(content) is str and translator.takes_text
        else content
        if type(content) is Example and content.pair is None and translator.takes_text
        else translator.example(content)
        for translator, (_, content) in zip(translators, requests, strict=True)
    ]
    rows = _rows(host, by_name, translators, examples, tokenizer or load_tokenizer(host.base))
    return Encoded(translators, examples, rows, bool([1 for translator in by_name.values() if translator.members]))


def run(host: Host, encoded: Encoded) -> Sequence[Sequence[Tensor]]:
    """Steps 2 and 3: the logits of every example's rows, on the CPU."""
    rows = encoded.rows
    if encoded.has_ensembles:
        members, (member_rows,), counts = repeated(encoded.translators, rows)
        of_member = iter(run(host, Encoded(members, encoded.examples, member_rows)))
        return [[out for _ in range(count) for out in next(of_member)] for count in counts]
    if isinstance(rows, PackedRows):
        names = [translator.name for translator in encoded.translators]
        records = {name: host.loaded(name) for name in dict.fromkeys(names)}
        if all_pooled(records.values()):
            return _pooled(host, rows, names, [records[name].width for name in names])
    if max(map(len, rows), default=1) == 1:
        return [
            [out]
            for out in run_rows(
                host,
                [rows_of_example[0] for rows_of_example in rows],
                [translator.name for translator in encoded.translators],
            )
        ]
    names = [translator.name for translator, windows in zip(encoded.translators, rows, strict=True) for _ in windows]
    ran = iter(run_rows(host, [row for windows in rows for row in windows], names))
    return [[next(ran) for _ in windows] for windows in rows]


def _pooled(host: Host, rows: PackedRows, names: Sequence[str], widths: Sequence[int]) -> PooledOutputs:
    """The logits of packed rows, all of which are pooled; `widths` has the number of labels of each row's adapter."""
    widest, width_of_row = max(widths), np.array(widths)
    logits = np.empty((len(names), widest), np.float32)
    for numbers, values in pooled_blocks(host, rows.batch, rows.examples, names):
        columns = min(widest, values.shape[1])
        logits[numbers, :columns] = values[:, :columns]
    if min(widths) < widest:
        logits[np.arange(widest) >= width_of_row[:, None]] = -np.inf
    return PooledOutputs(torch.from_numpy(logits), width_of_row)


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
    """The rows of every example. A tokenizer is fast with many texts at once: texts encoded alike go together."""
    if len({t.asked_key for t in by_name.values()}) == 1 and not [1 for e in examples if e.target is not None]:
        first = translators[0]
        if (batch := first.packed(tokenizer, examples, row_limit(host, first.task.max_length, tokenizer))) is not None:
            return PackedRows(batch)
    numbers_of_key: dict[Hashable, list[int]] = {}
    for i, (translator, example) in enumerate(zip(translators, examples, strict=True)):
        numbers_of_key.setdefault(translator.name if example.target is not None else translator.asked_key, []).append(i)
    rows: list[list[Row]] = [[]] * len(examples)
    for numbers in numbers_of_key.values():
        translator, texts = translators[numbers[0]], [examples[i] for i in numbers]
        limit = row_limit(host, translator.task.max_length, tokenizer)
        for i, rows_of_example in zip(numbers, translator.rows(tokenizer, texts, limit), strict=True):
            rows[i] = rows_of_example
    return rows


def limit_of(host: Host, name: str) -> int:
    """The longest row an adapter sees, in tokens."""
    return row_limit(host, host.task(name).max_length)


def row_limit(host: Host, max_length: int | None, tokenizer: Any = None) -> int:
    """A length in tokens that the base can take; raises if `max_length` is more than that."""
    most = longest(host, tokenizer or load_tokenizer(host.base))
    if max_length is not None and max_length > most:
        raise InlayError(f"max_length={max_length} is more than {host.base.name} takes: {most}")
    return min(most, _DEFAULT_LIMIT) if max_length is None else max_length


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
        before_batch: called before every batch; if it raises, no more batches run.
    """
    tokens = tokens or budget(host)
    out: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers in cut([len(row.ids) for row in rows], tokens):
        if before_batch is not None:
            before_batch()
        batch = numbers.tolist()
        for i, logits in zip(batch, _logits(host, [rows[i] for i in batch], [names[i] for i in batch]), strict=True):
            out[i] = logits
    return out


def _logits(host: Host, rows: Sequence[Row], names: Sequence[str]) -> list[Tensor]:
    """One batch, or halves of it where memory does not suffice; training may have taken most of it."""
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
    """(places in `rows`, [places, columns] their logits) for every group of heads, from as many batches as it takes;
    columns beyond the labels of a row's adapter mean nothing.

    Args:
        rows: numbers of the batch's rows; a row may come several times, for several adapters. All are pooled.
        names: the adapter of each.
        before_batch: called before every batch; if it raises, no more batches run.
    """
    for numbers in cut(batch.lengths[rows], budget(host)):
        if before_batch is not None:
            before_batch()
        for places, values in _blocks(host, batch.take(rows[numbers]), [names[i] for i in numbers.tolist()]):
            yield numbers[places], values


def _blocks(host: Host, batch: Batch, names: Sequence[str]) -> list[tuple[Array, Array]]:
    """One batch, or halves of it where memory does not suffice."""
    try:
        with host.lock:
            return pooled_logits(host, batch, names)
    except torch.OutOfMemoryError:
        if len(names) == 1:
            raise
    torch.cuda.empty_cache()  # not in the handler, where the failed batch is still alive
    half = len(names) // 2
    first, second = (
        _blocks(host, batch.take(np.arange(len(names))[part]), names[part]) for part in (slice(half), slice(half, None))
    )
    return first + [(places + half, logits) for places, logits in second]


def even_size(total: int, longest: int, tokens: int) -> int:
    """The tokens of a batch if all are cut evenly: batches of one size have one shape, which is recorded once."""
    count = max(1, -(-total // tokens))
    return min(tokens, -(-total // count) + longest)


def cut(lengths: Sequence[int] | Array, tokens: int) -> Iterator[Array]:
    """The numbers of rows, longest first, in batches of about equal size with at most `tokens` tokens (or one row)."""
    lengths = np.asarray(lengths, np.int64)
    order = (-lengths).argsort(kind="stable")
    ends = lengths[order].cumsum()
    start, before, tokens = 0, 0, even_size(int(ends[-1]), int(ends[0]), tokens) if len(ends) else tokens
    while start < len(order):
        end = max(start + 1, int(ends.searchsorted(before + tokens, side="right")))
        yield order[start:end]
        start, before = end, int(ends[end - 1])
