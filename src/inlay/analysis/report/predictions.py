"""An adapter asked about labelled rows: its answers, how good they are, and how sure it was of each decision.

A decision is what is right or wrong by itself: a text's class, each label of many, each word's tag, an answer to a
question. Regression makes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from inlay import metrics
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.evaluate import run_labelled
from inlay.engine.host import Host
from inlay.engine.predict import decode
from inlay.errors import DataError
from inlay.tasks import Answer, Example, Row, Task

Decision = tuple[float, bool]
"""How sure, and whether it was right."""


@dataclass(frozen=True)
class Predictions:
    """Answers to labelled rows."""

    name: str
    task: Task
    labels: tuple[str, ...]
    examples: Sequence[Example]
    answers: Sequence[Answer]
    metrics: dict[str, float]
    decisions: Sequence[Decision]
    """With the task's temperature."""
    raw: Sequence[Decision]
    """Without it."""
    unknown: frozenset[str]
    """Labels of the rows that the adapter does not know, and can only miss."""
    rows: Sequence[Row]
    """What the base was given."""

    @property
    def right(self) -> list[bool] | None:
        """Row by row, whether everything about it is right; None where an answer is not simply right or wrong."""
        if self.task.kind in ("regression", "mlm"):
            return None
        return [is_right(self.task.kind, e, a) for e, a in zip(self.examples, self.answers, strict=True)]


def predict(host: Host, name: str, examples: Sequence[Example]) -> Predictions:
    """Run an adapter over labelled rows."""
    if not examples:
        raise DataError("there are no rows to predict")
    task, labels = host.task(name), host.labels(name)
    encoded, outputs, unknown = run_labelled(host, name, examples)
    parts = list(zip(outputs, encoded.rows, examples, strict=True))
    answers, without = (decode(host, encoded, outputs, AnswerOptions(raw=raw)) for raw in (False, True))
    plain = task.raw()
    given = [(e, out, own) for out, own, e in parts]
    sure = [d for a, one in zip(answers, given, strict=True) for d in _decisions(task, labels, a, *one)]
    raw = [d for a, one in zip(without, given, strict=True) for d in _decisions(plain, labels, a, *one)]
    scores = task.score(examples, answers, labels)
    flat = [row for own in encoded.rows for row in own]
    return Predictions(name, task, labels, examples, answers, scores, sure, raw, frozenset(unknown), flat)


def is_right(kind: str, example: Example, answer: Answer) -> bool:
    """Whether everything about an answer is right."""
    if kind == "classification":
        return bool(answer["label"] == example.target)
    if kind == "multilabel":
        return set(answer["label"]) == set(example.target or ())
    if kind == "tagging":
        return tuple(answer["tags"]) == tuple(example.target)
    return metrics.qa([[text for text, _ in example.target]], [answer["answer"]])["exact"] == 1.0


def shown_target(kind: str, target: Any) -> str:
    """What is right, in words."""
    if kind == "qa":
        return " | ".join(dict.fromkeys(text for text, _ in target)) or "(no answer)"
    if isinstance(target, list | tuple):
        return (" " if kind == "tagging" else ", ").join(map(str, target)) or "none"
    return f"{target:.4g}" if isinstance(target, float) else str(target)


def shown_answer(kind: str, answer: Answer) -> str:
    """What was answered, in words."""
    if kind == "regression":
        return f"{answer['value']:.4g}"
    if kind == "tagging":
        return " ".join(answer["tags"])
    what = answer["answer"] or "(no answer)" if kind == "qa" else answer["label"]
    return ", ".join(what) or "none" if isinstance(what, list) else str(what)


def _decisions(
    task: Task, labels: Sequence[str], answer: Answer, example: Example, outputs: Sequence[Tensor], rows: Sequence[Row]
) -> Iterator[Decision]:
    if task.kind == "multilabel":
        given, gold = set(answer["label"]), set(example.target or ())
        for label, p in answer["scores"].items():
            yield (p if label in given else 1 - p), (label in given) == (label in gold)
    elif task.kind == "tagging" and "uncertainty" not in answer:  # an ensemble has no scores of single words
        temperature: Any = getattr(task, "temperature", 1.0)
        for out, row in zip(outputs, rows, strict=True):
            if row.aux:
                p = (out[[piece for piece, _ in row.aux]].float() / temperature).softmax(-1)
                for (_, word), sure, tag in zip(row.aux, *(v.tolist() for v in p.max(-1)), strict=True):
                    yield sure, labels[tag] == example.target[word]
    elif task.kind in ("classification", "qa"):
        yield answer["score"], is_right(task.kind, example, answer)
