"""What an adapter got wrong, the surest first: there labels are wrong, or it has learned something odd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inlay import metrics
from inlay.analysis.report.predictions import Predictions, is_right
from inlay.tasks import Answer, Example

MOST = 20
_ROOM = 400
"""Characters of a text that are shown."""


@dataclass(frozen=True)
class Mistake:
    """One wrong answer."""

    text: str
    pair: str
    right: str
    said: str
    sure: float | None
    """None where an answer has no score; then `by` says how far it is off."""
    place: str
    off: float | None = None
    span: tuple[int, int] | None = None
    """Characters of the text that it is about."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key, value in vars(self).items() if value not in (None, "")}


def mistakes(asked: Predictions, most: int = MOST) -> list[Mistake]:
    """The surest mistakes; of numbers, those that are furthest off."""
    kinds = {
        "classification": _classes,
        "multilabel": _labels,
        "tagging": _tags,
        "qa": _answers,
        "regression": _numbers,
    }
    of = kinds.get(asked.task.kind)
    if of is None:
        return []
    pairs = zip(asked.examples, asked.answers, strict=True)
    found = [one for example, answer in pairs for one in of(asked, example, answer)]
    return sorted(found, key=lambda one: -(one.sure if one.sure is not None else one.off or 0.0))[:most]


def _classes(asked: Predictions, example: Example, answer: Answer) -> Iterator[Mistake]:
    if answer["label"] != example.target:
        yield Mistake(*_shown(example), str(example.target), answer["label"], answer["score"], example.place)


def _labels(asked: Predictions, example: Example, answer: Answer) -> Iterator[Mistake]:
    given, gold = set(answer["label"]), set(example.target or ())
    for label in sorted(given ^ gold):
        p = answer["scores"].get(label, 0.0)
        right, said = ("", label) if label in given else (label, f"not {label}")
        yield Mistake(*_shown(example), right or f"not {label}", said, p if label in given else 1 - p, example.place)


def _tags(asked: Predictions, example: Example, answer: Answer) -> Iterator[Mistake]:
    tags = list(example.target)
    entities = metrics.are_entity_tags(asked.labels)
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


def _answers(asked: Predictions, example: Example, answer: Answer) -> Iterator[Mistake]:
    if not is_right("qa", example, answer):
        right = " | ".join(dict.fromkeys(text for text, _ in example.target)) or "(no answer)"
        context = _around(example.pair or "", answer["start"] or 0)
        said = answer["answer"] or "(no answer)"
        yield Mistake(_cut(example.text), context, right, said, answer["score"], example.place)


def _numbers(asked: Predictions, example: Example, answer: Answer) -> Iterator[Mistake]:
    off = abs(answer["value"] - example.target)
    said, right = f"{answer['value']:.4g}", f"{example.target:.4g}"
    yield Mistake(*_shown(example), right, said, None, example.place, off)


def _shown(example: Example) -> tuple[str, str]:
    return _cut(example.shown()), _cut(example.pair or "")


def _cut(text: str) -> str:
    return text if len(text) <= _ROOM else f"{text[: _ROOM - 1]}…"


def _around(text: str, at: int) -> str:
    """A stretch of a long text around a place."""
    if len(text) <= _ROOM:
        return text
    begin = max(0, min(at - _ROOM // 2, len(text) - _ROOM))
    end = begin + _ROOM
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
