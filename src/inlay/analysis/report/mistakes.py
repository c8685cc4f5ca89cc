"""An adapter's mistakes, the surest first: they show wrong labels, or something odd that it has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from inlay import metrics
from inlay.analysis.report.predictions import Predictions, is_right, shown_answer, shown_target
from inlay.library.card_text import shortened
from inlay.tasks import Answer, Example

MOST = 20
_ROOM = 400
"""The most characters of a text that are shown."""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer."""

    text: str
    pair: str
    right: str
    said: str
    sure: float | None
    """None if an answer has no score; then `off` tells how far off it is."""
    place: str
    off: float | None = None
    span: tuple[int, int] | None = None
    """The characters of the text that the answer is about."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key, value in vars(self).items() if value not in (None, "")}


def mistakes(predictions: Predictions) -> list[Mistake]:
    """The surest mistakes; for numbers, those that are furthest off."""
    kinds: dict[str, Callable[[Example, Answer], Iterator[Mistake]]] = {
        "classification": _classes,
        "multilabel": _labels,
        "tagging": partial(_tags, metrics.are_entity_tags(predictions.labels)),
        "qa": _answers,
        "regression": _numbers,
    }
    mistakes_of = kinds.get(predictions.task.kind)
    if mistakes_of is None:
        return []
    pairs = zip(predictions.examples, predictions.answers, strict=True)
    unsorted = [mistake for example, answer in pairs for mistake in mistakes_of(example, answer)]
    return sorted(unsorted, key=lambda m: -(m.sure if m.sure is not None else m.off or 0.0))[:MOST]


def _classes(example: Example, answer: Answer) -> Iterator[Mistake]:
    if answer["label"] != example.target:
        yield Mistake(*_shown(example), str(example.target), answer["label"], answer["score"], example.place)


def _labels(example: Example, answer: Answer) -> Iterator[Mistake]:
    answered, gold = set(answer["label"]), set(example.target or ())
    for label in sorted(answered ^ gold):
        p = answer["scores"].get(label, 0.0)
        right, said, sure = (f"not {label}", label, p) if label in answered else (label, f"not {label}", 1 - p)
        yield Mistake(*_shown(example), right, said, sure, example.place)


def _tags(entities: bool, example: Example, answer: Answer) -> Iterator[Mistake]:
    tags = list(example.target)
    gold = set(metrics.entities(tags) if entities else [(tag, i, i + 1) for i, tag in enumerate(tags)])
    words = answer["tokens"]
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + 1)
    for span in answer["spans"]:
        first, last = span["start"], span["end"]
        if not example.words:  # characters of a text; gold tags always come with words
            continue
        if (span["label"], first, last) not in gold:
            at = (starts[first], starts[last] - 1)
            yield Mistake(
                " ".join(words), "", " ".join(tags[first:last]), span["label"], span["score"], example.place, span=at
            )


def _answers(example: Example, answer: Answer) -> Iterator[Mistake]:
    if not is_right("qa", example, answer):
        right, said = shown_target("qa", example.target), shown_answer("qa", answer)
        context = _around(example.pair or "", answer["start"] or 0)
        yield Mistake(shortened(example.text, _ROOM), context, right, said, answer["score"], example.place)


def _numbers(example: Example, answer: Answer) -> Iterator[Mistake]:
    right, said = shown_target("regression", example.target), shown_answer("regression", answer)
    yield Mistake(*_shown(example), right, said, None, example.place, abs(answer["value"] - example.target))


def _shown(example: Example) -> tuple[str, str]:
    return shortened(example.shown(), _ROOM), shortened(example.pair or "", _ROOM)


def _around(text: str, at: int) -> str:
    """A stretch of a long text around a place."""
    if len(text) <= _ROOM:
        return text
    begin = max(0, min(at - _ROOM // 2, len(text) - _ROOM))
    end = begin + _ROOM
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
