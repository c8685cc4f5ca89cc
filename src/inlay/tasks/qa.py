"""Extractive question answering: the answer is a span of the context, exact to the character.

A long context becomes overlapping windows. The loss is the mean of two cross-entropies, over the positions where an
answer may start and end; a window without the answer points at its first token. Scores are those of SQuAD v1.1, and
of v2 for unanswerable questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.config import option
from inlay.data.columns import OWN, Columns
from inlay.data.record import Record
from inlay.errors import InlayError
from inlay.registry import tasks
from inlay.tasks import Answer, Example, Row, Targets, Task, Unusable, as_text, equal_shares, first_tokens
from inlay.tasks._text import overlapping
from inlay.tasks._together import shares

_WINDOW = 384


@tasks.register("qa")
@dataclass(frozen=True, kw_only=True)
class QA(Task):
    """The options of the task."""

    kind = "qa"
    measures = metrics.OF_TASK["qa"]
    columns = OWN["qa"].columns
    has_whole_rows = False
    loss_options = ()
    encode_options = ("max_length", "stride")
    per_token = True

    max_length: int | None = option(
        None, "longest window in tokens, question included; auto is at most 384", at_least=8
    )
    stride: int = option(128, "how many tokens two windows share", at_least=0)
    longest: int = option(30, "the longest answer in tokens", at_least=1)
    no_answer: bool = option(False, "whether a question may have no answer; taken from the training data")

    def fit(self, examples: Sequence[Example]) -> Self:
        """Questions without an answer among the examples make it possible to give none."""
        return replace(self, no_answer=self.no_answer or any(not e.target for e in examples))

    def subject(self, example: Example) -> tuple[str, str | None]:
        """The context: there may be many questions about it."""
        return example.pair or "", None

    def read(self, record: Record, columns: Columns) -> Example:
        """The target is [(text, first character)]; an answer without a position is looked up in the context."""
        question, context = as_text(record, columns.question), as_text(record, columns.context)
        target = _answers(record.fields.get(columns.answers), context) if columns.answers else None
        return Example(question, context, (), target, str(record.fields.get("id") or ""), record.place)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Two outputs per token."""
        return ("start", "end")

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """aux is [(token, first character, last character + 1)] of the context; the target (start, end) in tokens."""
        rows: list[Row] = []
        limit = limit if self.max_length is not None else min(limit, _WINDOW)
        for example in examples:
            if example.pair is None:
                raise InlayError(f"the question {example.text[:60]!r} needs a context to find its answer in")
        for index, windows in enumerate(overlapping(tokenizer, examples, limit, self.stride)):
            rows += [_window(encoded, number, index, examples[index]) for encoded, number in windows]
        return rows

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a row, and looks at all its tokens; its value is (start, end)."""
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)[:, None]
        token = np.arange(lengths.max(initial=0))
        at = np.where(token < lengths, first_tokens(rows)[:, None] + token, -1)
        value = np.array([row.target for row in rows], dtype=np.int64)
        return Targets(at, value, equal_shares(len(rows)))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy over all tokens of a window, the mean of start and end."""
        both = outputs[..., :2].transpose(1, 2).flatten(0, 1)  # [units * 2, tokens]
        return F.cross_entropy(both, value.flatten(), reduction="none").view_as(value).mean(-1)

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """The best span of all windows; its score is P(start) P(end) in its window."""
        best: tuple[float, float, int, int] | None = None
        null = float("inf")
        for out, row in zip(outputs, rows, strict=True):
            logits = out.float().cpu()
            null = min(null, (logits[0, 0] + logits[0, 1]).item())
            span = _best_span(logits, row.aux, self.longest)
            if span is not None and (best is None or span[0] > best[0]):
                best = span
        context = example.pair or ""
        if best is None or (self.no_answer and null >= best[0]):
            return {"answer": "", "start": None, "end": None, "score": 0.0 if best is None else 1 - best[1]}
        _, p, start, end = best
        return {"answer": context[start:end], "start": start, "end": end, "score": p}

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """The answer with the most votes, the surest of equals; uncertain by the share of the other votes."""
        votes = [(answer["start"], answer["end"]) for answer in answers]
        score_of = dict.fromkeys(votes, 0.0)
        for vote, answer, weight in zip(votes, answers, weights, strict=True):
            score_of[vote] += weight * answer["score"] / sum(weights)
        share_of = shares(votes, weights)
        best = max(share_of, key=lambda vote: (share_of[vote], score_of[vote]))
        return answers[votes.index(best)] | {"score": score_of[best], "uncertainty": 1 - share_of[best]}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """F1 and exact match."""
        return metrics.qa([[text for text, _ in e.target] for e in examples], [a["answer"] for a in answers])


def _window(encoded: Any, number: int, index: int, example: Example) -> Row:
    offsets, types, context = encoded["offset_mapping"][number], encoded.get("token_type_ids"), example.pair or ""
    inside = [
        (token, *_trimmed(context, *offsets[token]))
        for token, part in enumerate(encoded.sequence_ids(number))
        if part == 1
    ]
    ids = encoded["input_ids"][number]
    return Row(ids, None if types is None else types[number], _target(example, inside), index, inside)


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """A token's characters without the space that some tokenizers count with the word behind it."""
    while start < end and context[start].isspace():
        start += 1
    return start, end


def _target(example: Example, inside: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The first given answer in tokens; (0, 0) if it is not wholly in this window."""
    if not example.target or not inside:
        return (0, 0)
    text, first = example.target[0]
    first, last = first + len(text) - len(text.lstrip()), first + len(text.rstrip())
    if first < inside[0][1] or last > inside[-1][2]:
        return (0, 0)
    touched = [token for token, begin, end in inside if begin < last and end > first]
    return (touched[0], touched[-1]) if touched else (0, 0)


def _best_span(
    logits: Tensor, inside: Sequence[tuple[int, int, int]], longest: int
) -> tuple[float, float, int, int] | None:
    """(sum of logits, probability, first character, last + 1) of the best span of at most `longest` tokens."""
    if not inside:
        return None
    first = inside[0][0]
    start, end = logits[first : first + len(inside)].unbind(-1)
    sums = start.unsqueeze(1) + end.unsqueeze(0)
    allowed = torch.ones_like(sums).triu().tril(longest - 1).bool()
    at = int(sums.masked_fill(~allowed, float("-inf")).argmax())
    s, e = divmod(at, len(inside))
    p = (logits[:, 0].softmax(0)[first + s] * logits[:, 1].softmax(0)[first + e]).item()
    return sums[s, e].item(), p, inside[s][1], inside[e][2]


def _answers(value: Any, context: str) -> list[tuple[str, int]]:
    if value is None or value in ("", []):
        return []
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):  # the hub's squad: a table of columns
        texts, starts = value["text"], value.get("answer_start") or [None] * len(value["text"])
        if len(texts) != len(starts):
            raise Unusable(f"there are {len(texts)} answers but {len(starts)} positions")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    answers = []
    for entry in value if isinstance(value, list) else [value]:
        text, start = (entry.get("text"), entry.get("answer_start")) if isinstance(entry, Mapping) else (entry, None)
        if not isinstance(text, str) or not text.strip():
            raise Unusable(f"an answer must be text, not {entry!r}")
        if start is None and (start := context.find(text)) < 0:
            raise Unusable(f"the answer {text[:60]!r} is not in the context")
        if not isinstance(start, int) or start < 0 or context[start : start + len(text)] != text:
            raise Unusable(f"the answer {text[:60]!r} is not in the context at {start}")
        answers.append((text, start))
    return answers
