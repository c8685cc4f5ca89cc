"""A tag for every word, given at its first word piece. Loss: cross-entropy, the mean over words.

A sentence that is longer than a row is split between words, so that every word gets a tag.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Self
from unicodedata import category

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.config import option
from inlay.data.columns import OWN, Columns
from inlay.data.record import Record
from inlay.errors import DataError, InlayError
from inlay.registry import tasks
from inlay.tasks import Answer, Example, Row, Targets, Task, Unusable, first_tokens, in_natural_order, needed, shares
from inlay.tasks._text import best_temperature
from inlay.tasks._together import shares as vote_shares

_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")
"""Kana and Han stand alone; else letters and digits together, and punctuation alone."""
_OPTIONS = {"return_offsets_mapping": True}
_CHUNK = 1000
"""Sentences that a tokenizer sees at once: short enough for memory, long enough to be fast."""
_JOINERS = "\u200c\u200d"

Window = tuple[list[int], list[int] | None, list[tuple[int, int]]]
"""Ids, types, first pieces."""


@tasks.register("tagging")
@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """The options of the task."""

    kind = "tagging"
    measures = metrics.OF_TASK["tagging"]
    columns = OWN["tagging"].columns
    loss_options = ()
    encode_options = ()
    per_token = True

    temperature: float = option(1.0, "what logits are divided by; fitted on validation rows", above=0)

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
        tags = in_natural_order([tag for e in examples for tag in e.target])
        if len(tags) < 2:
            place = examples[0].place if examples else "the data"
            raise DataError(f"{place}: every word has the tag {tags[0] if tags else None!r}; expected two tags")
        return tags

    def label_names(self, example: Example) -> tuple[str, ...]:
        """All tags."""
        return tuple(example.target or ())

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """aux is [(piece, word)]: where each word's first piece stands; the target has one number for each."""
        number = {label: i for i, label in enumerate(labels)}
        for example in examples:
            unknown = set(example.target or ()) - number.keys()
            if unknown:
                raise DataError(f"{example.place}: the tag {min(unknown)!r} is not one of {', '.join(labels)}")
        rows: list[Row] = []
        for begin in range(0, len(examples), _CHUNK):
            chunk = examples[begin : begin + _CHUNK]
            for index, windows in enumerate(_windows(tokenizer, [_words(e) for e in chunk], limit)):
                tags = chunk[index].target
                for ids, types, firsts in windows:
                    target = None if tags is None else [number[tags[w]] for _, w in firsts]
                    rows.append(Row(ids, types, target, begin + index, firsts))
        return rows

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a word, at its first piece; there is none where the tokenizer drops all characters."""
        pieces = np.array([piece for row in rows for piece, _ in row.aux], dtype=np.int64)
        at = pieces + np.repeat(first_tokens(rows), [len(row.aux) for row in rows])
        classes = np.array([tag for row in rows for tag in row.target], dtype=np.int64)
        return Targets(at, classes, shares(classes, weights))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(outputs, value, reduction="none")

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """Words, tags and spans; spans have characters where a text was given, else word positions."""
        return self.answers([outputs], [rows], [example], labels, base)[0]

    def answers(
        self,
        outputs: Sequence[Sequence[Tensor]],
        rows: Sequence[Sequence[Row]],
        examples: Sequence[Example],
        labels: Sequence[str],
        base: Base,
    ) -> list[Answer]:
        """Words, tags and spans of all examples, from one tensor."""
        pairs = [(out, row) for out, row in _row_outputs(outputs, rows) if row.aux]
        best_of_word: Iterator[tuple[float, int]] = iter(())
        if pairs:
            logits = _at_words(pairs).float()
            p, tag = (logits / self.temperature).softmax(-1).max(-1)
            best_of_word = zip(p.tolist(), tag.tolist(), strict=True)
        entities, nothing = is_entities(labels), "O" if "O" in labels else labels[0]
        answers: list[Answer] = []
        for windows, example in zip(rows, examples, strict=True):
            places = word_spans(example.text) if not example.words else []
            words = example.words or tuple(example.text[a:b] for a, b in places)
            tags, scores = [nothing] * len(words), [0.0] * len(words)
            for row in windows:
                # best_of_word goes on through the words of all rows
                for (_, word), (score, best) in zip(row.aux, best_of_word, strict=False):
                    if words:  # a text without words goes in as if it were one
                        tags[word], scores[word] = labels[best], score
            spans = _spans(example, places, words, tags, scores, entities)
            answers.append({"tokens": list(words), "tags": tags, "spans": spans})
        return answers

    def together(self, answers: Sequence[Answer], weights: Sequence[int], labels: Sequence[str]) -> Answer:
        """The spans that more than half vote for; or, where tags are of another kind, each word's most frequent tag.

        Uncertain by the share of votes, over words, that differ from the result.
        """
        entities, total = is_entities(labels), sum(weights)
        votes = [answer["tags"] for answer in answers]
        span_of_piece = [
            dict(zip(_pieces(vote, entities), answer["spans"], strict=True))
            for vote, answer in zip(votes, answers, strict=True)
        ]
        tags = _elected_spans(votes, weights, labels) if entities else _elected_tags(votes, weights)
        spans = []
        for piece in _pieces(tags, entities):
            voters = [
                (w, of_piece[piece]) for w, of_piece in zip(weights, span_of_piece, strict=True) if piece in of_piece
            ]
            spans.append(voters[0][1] | {"score": sum(w * span["score"] for w, span in voters) / total})
        against = [
            sum(w for w, vote in zip(weights, votes, strict=True) if vote[i] != tag) for i, tag in enumerate(tags)
        ]
        uncertainty = sum(against) / total / max(1, len(tags))
        return {"tokens": answers[0]["tokens"], "tags": tags, "spans": spans, "uncertainty": uncertainty}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """Accuracy over words; F1 over entities where tags are B- and I-."""
        return metrics.tagging([e.target for e in examples], [a["tags"] for a in answers])

    def calibrate(self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> Self:
        """One temperature over all words."""
        logits, targets = _words_and_tags(outputs, rows)
        temperature = best_temperature(lambda t: F.cross_entropy(logits / t, targets).item(), len(targets))
        return replace(self, temperature=temperature)

    def answer_loss(
        self, outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]], base: Base
    ) -> float | None:
        """The mean over words."""
        logits, targets = _words_and_tags(outputs, rows)
        return F.cross_entropy(logits / self.temperature, targets).item()

    def primary(self, asked: str | None, labels: Sequence[str]) -> str:
        """Entity F1 where tags are B- and I-, else accuracy."""
        measures = ("f1", "precision", "recall", "accuracy") if is_entities(labels) else ("accuracy",)
        return metrics.choose(measures, asked, self.name)


def _row_outputs(outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> list[tuple[Tensor, Row]]:
    """Every row of every example, with its logits."""
    of_example = zip(outputs, rows, strict=True)
    return [pair for outs, windows in of_example for pair in zip(outs, windows, strict=True)]


def _words_and_tags(outputs: Sequence[Sequence[Tensor]], rows: Sequence[Sequence[Row]]) -> tuple[Tensor, Tensor]:
    """[words, tags] logits of all words, and [words] the numbers of their tags."""
    pairs = _row_outputs(outputs, rows)
    logits = _at_words(pairs).double()
    return logits, torch.tensor([t for _, r in pairs for t in r.target], dtype=torch.long, device=logits.device)


def is_entities(labels: Sequence[str]) -> bool:
    """Whether tags are O, B-X, I-X ..."""
    return all(label == "O" or label[:2] in ("B-", "I-", "E-", "S-") for label in labels) and set(labels) != {"O"}


def _strings(value: Any, column: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(v, str | int) for v in value):
        raise Unusable(f"the column {column!r} must hold a list of words, not {str(value)[:40]!r}")
    return tuple(str(v) for v in value)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words and the punctuation marks of a text are."""
    # marks (accents, vowel signs) belong to the word they stand in, but are not letters to a regular expression
    letters = text if text.isascii() else "".join("x" if category(c)[0] == "M" or c in _JOINERS else c for c in text)
    return [m.span() for m in _WORDS.finditer(letters)]


def _words(example: Example) -> Sequence[str]:
    return example.words or tuple(example.text[a:b] for a, b in word_spans(example.text)) or (example.text,)


def _windows(tokenizer: Any, sentences: Sequence[Sequence[str]], limit: int) -> list[list[Window]]:
    """Rows of at most `limit` tokens that cover all words of each sentence, cut between words.

    The words go in as a text with spaces, because many tokenizers write a word in a text unlike one that stands alone.
    """
    if not tokenizer.is_fast:
        raise InlayError("tagging needs a fast tokenizer, which knows the word of every piece")
    windows_of: list[list[Window]] = [[] for _ in sentences]
    whole = [(i, 0, len(words)) for i, words in enumerate(sentences)]
    for (i, *_), window in zip(whole, _encoded(tokenizer, sentences, whole, limit), strict=True):
        if len(window[0]) < limit:  # nothing was cut
            windows_of[i].append(window)
    cut = [i for i, windows in enumerate(windows_of) if not windows]
    room = limit - tokenizer.num_special_tokens_to_add()
    sizes = _sizes(tokenizer, {i: sentences[i] for i in cut})
    waiting = [(i, 0) for i in cut]
    while waiting:  # the next row of every sentence that is not at its end
        parts = [(i, start, _end(sizes[i], start, room)) for i, start in waiting]
        waiting = []
        for (i, start, end), window in zip(parts, _encoded(tokenizer, sentences, parts, limit), strict=True):
            windows_of[i].append(window)
            has = {word for _, word in window[2]}
            # a word at the start of a row can be longer than within a text, and then the last ones have no place
            following = next((w for w in range(start + 1, end) if sizes[i][w] and w not in has), end)
            waiting += [(i, following)] if following < len(sentences[i]) else []
    return windows_of


def _encoded(
    tokenizer: Any, sentences: Sequence[Sequence[str]], parts: Sequence[tuple[int, int, int]], limit: int
) -> Iterator[Window]:
    """A window for each (sentence, first word, last word + 1), cut at the limit; words are numbered as in the sentence.

    Sentences go to the tokenizer all at once, which is faster.
    """
    texts = [" ".join(sentences[i][start:end]) for i, start, end in parts]
    encoded = tokenizer(texts, **_OPTIONS, truncation=True, max_length=limit)
    types = encoded.get("token_type_ids")
    for n, (i, start, end) in enumerate(parts):
        firsts: dict[int, int] = {}
        for piece, word in enumerate(_word_of_piece(sentences[i][start:end], encoded, n)):
            if word is not None:
                firsts.setdefault(start + word, piece)
        row_types = types[n] if types is not None and any(types[n]) else None
        yield encoded["input_ids"][n], row_types, [(piece, word) for word, piece in firsts.items()]


def _sizes(tokenizer: Any, sentences: Mapping[int, Sequence[str]]) -> dict[int, list[int]]:
    """How many pieces each word has within its whole sentence."""
    if not sentences:
        return {}
    texts = [" ".join(words) for words in sentences.values()]
    encoded = tokenizer(texts, **_OPTIONS, add_special_tokens=False, verbose=False)
    sizes = {}
    for n, (i, words) in enumerate(sentences.items()):
        sizes[i], word = [0] * len(words), 0
        for known in _word_of_piece(words, encoded, n):
            word = word if known is None else known
            sizes[i][word] += 1
    return sizes


def _end(size: Sequence[int], start: int, room: int) -> int:
    """Where a row that starts with this word ends: it has one word at least."""
    end, used = start + 1, size[start]
    while end < len(size) and used + size[end] <= room:
        end, used = end + 1, used + size[end]
    return end


def _word_of_piece(words: Sequence[str], encoded: Any, n: int) -> list[int | None]:
    """The word of every piece of these words with a space between them; None for special tokens and mere spaces."""
    starts = list(accumulate((len(word) + 1 for word in words), initial=0))
    word_of_piece: list[int | None] = []
    for (start, end), part in zip(encoded["offset_mapping"][n], encoded.sequence_ids(n), strict=True):
        word = bisect_right(starts, end - 1) - 1  # by its last character: some count the space in front with a piece
        outside = part is None or start == end or end == starts[word + 1]
        word_of_piece.append(None if outside else word)
    return word_of_piece


def _at_words(pairs: Sequence[tuple[Tensor, Row]]) -> Tensor:
    """[words, labels]: the logits at each word's first piece."""
    return torch.cat([out[[piece for piece, _ in row.aux]] for out, row in pairs])


def _pieces(tags: Sequence[str], entities: bool) -> list[tuple[str, int, int]]:
    """(label, first word, last + 1) of entities; or, where tags are of another kind, of every word that has one."""
    return metrics.entities(tags) if entities else [(tag, i, i + 1) for i, tag in enumerate(tags) if tag != "O"]


def _elected_spans(votes: Sequence[Sequence[str]], weights: Sequence[int], labels: Sequence[str]) -> list[str]:
    """The tags of the entities that more than half of the votes have: two of them never overlap."""
    tags = ["O"] * len(votes[0])
    pieces = [metrics.entities(vote) for vote in votes]
    for piece in dict.fromkeys(chain.from_iterable(pieces)):
        voters = [i for i, voted in enumerate(pieces) if piece in voted]
        if 2 * sum(weights[i] for i in voters) > sum(weights):
            kind, first, last = piece
            tags[first:last] = votes[voters[0]][first:last]
            if f"B-{kind}" in labels and tags[first] == f"I-{kind}":  # else it would go on from the word before
                tags[first] = f"B-{kind}"
    return tags


def _elected_tags(votes: Sequence[Sequence[str]], weights: Sequence[int]) -> list[str]:
    """For every word the tag with the most votes, the first of those with equally many."""
    shares_of_tags = [vote_shares(tags, weights) for tags in zip(*votes, strict=True)]
    return [max(share_of, key=share_of.__getitem__) for share_of in shares_of_tags]


def _spans(
    example: Example,
    places: Sequence[tuple[int, int]],
    words: Sequence[str],
    tags: Sequence[str],
    scores: Sequence[float],
    entities: bool,
) -> list[dict[str, Any]]:
    """Entities; or, where tags are of another kind, every word that has one."""
    spans = []
    for label, first, last in _pieces(tags, entities):
        start, end = (places[first][0], places[last - 1][1]) if places else (first, last)
        text = example.text[start:end] if places else " ".join(words[first:last])
        spans.append({"label": label, "start": start, "end": end, "text": text, "score": min(scores[first:last])})
    return spans
