"""From texts to answers, for any mix of adapters: encode as each task does, run packed batches, decode.

Rows are sorted by length before they are cut into batches, so that a batch holds rows of one size and memory is bounded
by tokens, not by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.bank.inputs import longest_row
from inlay.base.load import load_tokenizer
from inlay.data.batch import Batch
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
    if top_k is not None and top_k < 1:
        raise InlayError(f"top_k must be at least 1, not {top_k}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise InlayError(f"threshold must be between 0 and 1, not {threshold}")
    if not all(isinstance(one, tuple) and len(one) == 2 for one in requests):
        raise InlayError("requests are a list of (adapter, text)")
    examples = [(name, _example(host, name, what)) for name, what in requests]
    outputs, rows = run_examples(host, examples)
    answers = []
    for (name, example), out, own in zip(examples, outputs, rows, strict=True):
        task = host.task(name).raw() if raw else host.task(name)
        answer = task.decode(out, own, example, host.labels(name), host.base)
        answers.append({"task": name, **_asked(example, name, host), **_trimmed(answer, top_k, threshold)})
    return answers


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
    of_name: dict[str, list[int]] = {}
    for i, (name, _) in enumerate(examples):
        of_name.setdefault(name, []).append(i)
    rows: list[list[Row]] = [[] for _ in examples]
    for name, places in of_name.items():
        task = host.task(name)
        some = [examples[i][1] for i in places]
        encoded = task.encode(tokenizer, some, host.labels(name), limit_of(host, name))
        drawn = task.draw(encoded, tokenizer, torch.Generator().manual_seed(0))
        for row in drawn:
            rows[places[row.example]].append(row)
    flat = [(name, row) for (name, _), own in zip(examples, rows, strict=True) for row in own]
    ran = iter(run_rows(host, [row for _, row in flat], [name for name, _ in flat]))
    return [[next(ran) for _ in own] for own in rows], rows


def run_rows(host: Host, rows: Sequence[Row], names: Sequence[str], tokens: int | None = None) -> list[Tensor]:
    """The logits of every row on the CPU, in order, from as many batches as it takes."""
    tokens = tokens or TOKENS.get(host.base.device.type, 8192)
    out: list[Tensor] = [torch.empty(0)] * len(rows)
    for chunk in chunks([len(row.ids) for row in rows], tokens):
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


def _example(host: Host, name: str, what: Any) -> Example:
    """What was asked, in any of its forms; one text or two, as the adapter was trained."""
    example = _any_form(host, name, what)
    columns = host._record(name).about.get("columns")
    if columns and host.task(name).kind not in ("qa", "tagging"):
        if columns.get("pair") and example.pair is None:
            raise InlayError(f"{name!r} was trained on pairs: ask with (text, pair)")
        if not columns.get("pair") and example.pair is not None:
            raise InlayError(f"{name!r} was trained on single texts: it takes no pair")
    return example


def _any_form(host: Host, name: str, what: Any) -> Example:
    kind = host.task(name).kind
    if isinstance(what, Example):
        return what
    if isinstance(what, str):
        if kind == "qa":
            raise InlayError(f"{name!r} answers questions: ask with (question, context)")
        return Example(what)
    if isinstance(what, Mapping):
        return _named(what)
    if isinstance(what, tuple) and len(what) == 2:
        return Example(str(what[0]), str(what[1]))
    if isinstance(what, list) and all(isinstance(word, str) for word in what):
        return Example(words=tuple(what)) if kind == "tagging" else Example(" ".join(what))
    raise InlayError(f"a request is a text, a pair of texts, a list of words or a mapping, not {what!r}")


def _named(what: Mapping[str, Any]) -> Example:
    """A request as a mapping: text and pair, question and context, or tokens."""
    for keys in (("text", "pair"), ("question", "context"), ("tokens",)):
        if keys[0] in what and not set(what) - set(keys):
            values = [what.get(key) for key in keys]
            if keys == ("tokens",) and isinstance(values[0], list | tuple):
                return Example(words=tuple(str(word) for word in values[0]))
            if keys != ("tokens",) and isinstance(values[0], str) and isinstance(values[1], str | None):
                return Example(values[0], values[1])
    raise InlayError(f"a request is text and pair, question and context, or tokens (a list), not {dict(what)!r}")


def _asked(example: Example, name: str, host: Host) -> Answer:
    if host.task(name).kind == "qa":
        return {"text": example.text, "context": example.pair}
    return {"text": example.shown()} | ({"pair": example.pair} if example.pair is not None else {})


def _trimmed(answer: Answer, top_k: int | None, threshold: float | None) -> Answer:
    """Fewer scores, and no label when too unsure."""
    out = dict(answer)
    if top_k is not None and "scores" in out:
        best = sorted(out["scores"].items(), key=lambda item: -item[1])[:top_k]
        out["scores"] = dict(best)
    if threshold is not None and "score" in out and out["score"] < threshold:
        out |= dict.fromkeys(out.keys() & {"label", "answer", "start", "end"})
    if threshold is not None and "spans" in out:
        out["spans"] = [span for span in out["spans"] if span["score"] >= threshold]
    return out
