"""An adapter's answers to labelled rows, their metrics, and how sure it was of each decision.

A decision is right or wrong by itself: the class of a text, each of several labels, the tag of a word, the answer to a
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
"""(how sure, whether it was right)."""


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
    """Without the task's temperature."""
    unknown: frozenset[str]
    """Labels of the rows that the adapter does not know, and always misses."""
    rows: Sequence[Row]
    """The input of the base."""

    @property
    def right(self) -> list[bool] | None:
        """Whether everything about a row is right, for every row; None if an answer is not simply right or wrong."""
        if self.task.kind in ("regression", "mlm"):
            return None
        return [is_right(self.task.kind, e, a) for e, a in zip(self.examples, self.answers, strict=True)]


def predict(host: Host, name: str, examples: Sequence[Example]) -> Predictions:
    """Run an adapter over labelled rows."""
    if not examples:
        raise DataError("there are no rows to predict")
    task, labels = host.task(name), host.labels(name)
    encoded, outputs, unknown = run_labelled(host, name, examples)
    inputs = list(zip(examples, outputs, encoded.rows, strict=True))

    def decisions(task: Task, answers: Sequence[Answer]) -> list[Decision]:
        return [d for a, of_row in zip(answers, inputs, strict=True) for d in _decisions(task, labels, a, *of_row)]

    answers, raw_answers = (decode(host, encoded, outputs, AnswerOptions(raw=raw)) for raw in (False, True))
    return Predictions(
        name=name,
        task=task,
        labels=labels,
        examples=examples,
        answers=answers,
        metrics=task.score(examples, answers, labels),
        decisions=decisions(task, answers),
        raw=decisions(task.raw(), raw_answers),
        unknown=frozenset(unknown),
        rows=[row for windows in encoded.rows for row in windows],
    )


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
    """The right answer, in words."""
    if kind == "qa":
        return " | ".join(dict.fromkeys(text for text, _ in target)) or "(no answer)"
    if isinstance(target, list | tuple):
        return (" " if kind == "tagging" else ", ").join(map(str, target)) or "none"
    return f"{target:.4g}" if isinstance(target, float) else str(target)


def shown_answer(kind: str, answer: Answer) -> str:
    """The answer, in words."""
    if kind == "regression":
        return f"{answer['value']:.4g}"
    if kind == "tagging":
        return " ".join(answer["tags"])
    content = answer["answer"] or "(no answer)" if kind == "qa" else answer["label"]
    return ", ".join(content) or "none" if isinstance(content, list) else str(content)


def _decisions(
    task: Task, labels: Sequence[str], answer: Answer, example: Example, outputs: Sequence[Tensor], rows: Sequence[Row]
) -> Iterator[Decision]:
    if task.kind == "multilabel":
        answered, gold = set(answer["label"]), set(example.target or ())
        for label, p in answer["scores"].items():
            yield (p if label in answered else 1 - p), (label in answered) == (label in gold)
    elif task.kind == "tagging" and "uncertainty" not in answer:  # an ensemble has no scores of single words
        temperature: Any = getattr(task, "temperature", 1.0)
        for out, row in zip(outputs, rows, strict=True):
            if row.aux:
                p = (out[[piece for piece, _ in row.aux]].float() / temperature).softmax(-1)
                for (_, word), sure, tag in zip(row.aux, *(v.tolist() for v in p.max(-1)), strict=True):
                    yield sure, labels[tag] == example.target[word]
    elif task.kind in ("classification", "qa"):
        yield answer["score"], is_right(task.kind, example, answer)
