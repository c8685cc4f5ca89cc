"""A tag for every word, given at its first word piece. Loss: cross-entropy, the mean over words.

A sentence longer than a row is cut between words into several, so that every word gets a tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.config import option
from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.errors import DataError, InlayError
from inlay.registry import tasks
from inlay.tasks import Answer, Example, Row, Task, Unusable, in_natural_order, needed
from inlay.tasks._text import best_temperature

_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]")


@tasks.register("tagging")
@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """The options of the task."""

    roles = ("tokens", "tags")
    per_token = True

    temperature: float = option(1.0, "what logits are divided by; fitted on validation rows")

    def read(self, record: Record, columns: Columns) -> Example:
        """As many tags as words; without a tags column a text may stand in for the words."""
        words = needed(record, columns.tokens)
        if isinstance(words, str) and not columns.tags:
            return Example(text=words, place=record.place)
        words = _strings(words, columns.tokens)
        if not words:
            raise Unusable("the sentence has no words")
        tags = _strings(needed(record, columns.tags), columns.tags) if columns.tags else None
        if tags is not None and len(tags) != len(words):
            raise Unusable(f"there are {len(words)} words but {len(tags)} tags")
        return Example("", None, words, tags, "", record.place)

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """Every tag that occurs."""
        found = in_natural_order([tag for e in examples for tag in e.target])
        if len(found) < 2:
            place = examples[0].place if examples else "the data"
            raise DataError(f"{place}: every word has the tag {found[0] if found else None!r}; expected two tags")
        return found

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """aux is [(piece, word)]: where each word's first piece stands; the target has one number for each."""
        number = {label: i for i, label in enumerate(labels)}
        rows: list[Row] = []
        for index, example in enumerate(examples):
            unknown = set(example.target or ()) - set(labels)
            if unknown:
                raise DataError(f"{example.place}: the tag {min(unknown)!r} is not one of {', '.join(labels)}")
            words = example.words or tuple(m.group() for m in _WORDS.finditer(example.text)) or (example.text,)
            for ids, types, firsts in _windows(tokenizer, words, limit):
                target = None if example.target is None else [number[example.target[w]] for _, w in firsts]
                rows.append(Row(ids, types, target, index, firsts))
        return rows

    def loss(self, outputs: Sequence[Tensor], rows: Sequence[Row], base: Base, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy over the words of all rows."""
        logits = _at_words(outputs, rows).float()
        targets = torch.tensor([t for r in rows for t in r.target], device=logits.device)
        if weights is None:  # a row may have no word that the tokenizer knows
            return F.cross_entropy(logits, targets, reduction="sum") / max(1, len(targets))
        return F.cross_entropy(logits, targets, weights)

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """Words, tags and spans; spans have characters where a text was given, else word positions."""
        found = list(_WORDS.finditer(example.text)) if not example.words else []
        words = example.words or tuple(m.group() for m in found)
        nothing = "O" if "O" in labels else labels[0]
        tags, scores = [nothing] * len(words), [0.0] * len(words)
        for out, row in zip(outputs, rows, strict=True):
            if row.aux and words:
                p = (_at_words([out], [row]).float() / self.temperature).softmax(-1)
                for (_, word), score, tag in zip(row.aux, *(v.tolist() for v in p.max(-1)), strict=True):
                    tags[word], scores[word] = labels[tag], score
        return {"tokens": list(words), "tags": tags, "spans": _spans(example, found, words, tags, scores)}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """Accuracy over words; F1 over entities where tags are B- and I-."""
        return metrics.tagging([e.target for e in examples], [a["tags"] for a in answers])

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """One temperature over all words."""
        flat = [(o, r) for out, row in zip(outputs, rows, strict=True) for o, r in zip(out, row, strict=True)]
        logits = _at_words([o for o, _ in flat], [r for _, r in flat]).double()
        targets = torch.tensor([t for _, r in flat for t in r.target], device=logits.device)
        return replace(self, temperature=best_temperature(lambda t: F.cross_entropy(logits / t, targets).item()))

    def primary(self, asked: str | None, labels: Sequence[str]) -> str:
        """Entity F1 where tags are B- and I-, else accuracy."""
        entities = is_entities(labels)
        available = set(metrics.PRIMARY[self.name]) - (set() if entities else {"f1", "precision", "recall"})
        return metrics.primary(self.name, asked, available, entities)


def is_entities(labels: Sequence[str]) -> bool:
    """Whether tags are O, B-X, I-X ..."""
    return all(label == "O" or label[:2] in ("B-", "I-", "E-", "S-") for label in labels) and set(labels) != {"O"}


def _strings(value: Any, column: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(v, str | int) for v in value):
        raise Unusable(f"the column {column!r} must hold a list of words, not {str(value)[:40]!r}")
    return tuple(str(v) for v in value)


def _windows(
    tokenizer: Any, words: Sequence[str], limit: int
) -> list[tuple[list[int], list[int] | None, list[tuple[int, int]]]]:
    """Rows of at most `limit` tokens that cover all words, cut between words: ids, types, first pieces."""
    if not tokenizer.is_fast:
        raise InlayError("tagging needs a fast tokenizer, which knows the word of every piece")
    room = limit - tokenizer.num_special_tokens_to_add()
    bare = tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)
    size = [0] * len(words)
    for word in bare.word_ids():
        size[word] += 1
    cuts, used = [0], 0
    for word, pieces in enumerate(size):
        if used and used + pieces > room:
            cuts.append(word)
            used = 0
        used += pieces
    out = []
    for start, end in zip(cuts, [*cuts[1:], len(words)], strict=True):
        encoded = tokenizer(list(words[start:end]), is_split_into_words=True, truncation=True, max_length=limit)
        firsts: dict[int, int] = {}
        for piece, word in enumerate(encoded.word_ids()):
            if word is not None:
                firsts.setdefault(word, piece)
        pieces_of = [(piece, start + word) for word, piece in firsts.items()]
        out.append((encoded["input_ids"], encoded.get("token_type_ids"), pieces_of))
    return out


def _at_words(outputs: Sequence[Tensor], rows: Sequence[Row]) -> Tensor:
    """[words, labels]: the logits at each word's first piece."""
    return torch.cat([out[[piece for piece, _ in row.aux]] for out, row in zip(outputs, rows, strict=True)])


def _spans(
    example: Example, found: Sequence[re.Match[str]], words: Sequence[str], tags: Sequence[str], scores: Sequence[float]
) -> list[dict[str, Any]]:
    if is_entities(sorted(set(tags) | {"O", "B-"})):
        pieces = metrics.entities(tags)
    else:
        pieces = [(tag, i, i + 1) for i, tag in enumerate(tags)]
    out = []
    for label, first, last in pieces:
        start, end = (found[first].start(), found[last - 1].end()) if found else (first, last)
        text = example.text[start:end] if found else " ".join(words[first:last])
        out.append({"label": label, "start": start, "end": end, "text": text, "score": min(scores[first:last])})
    return out
