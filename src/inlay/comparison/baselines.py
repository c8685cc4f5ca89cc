"""Baselines without a transformer: the commonest answer, and TF-IDF with a linear model.

Both see the rows that a run of the same seed sees, and are scored by the same task, so that their numbers compare with
those of methods. For a task without a baseline, `missing` says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from inlay.comparison import linear
from inlay.runs.prepare import Prepared
from inlay.sweeps.store import Store
from inlay.sweeps.trial import digest
from inlay.tasks import Answer, Example, Task

MAJORITY, TFIDF = "majority", "tf-idf"
NAMES = (MAJORITY, TFIDF)
TRIALS = 20
"""Settings that Optuna tries for TF-IDF."""
Answering = Callable[[Sequence[Example]], list[Answer]]
_FORMAT = 1
"""Increased when a baseline is computed in another way, so that stored results of the old one are not reused."""


@dataclass(frozen=True)
class Score:
    """A baseline with a seed on a dataset."""

    metrics: dict[str, dict[str, float]]
    """split -> metric -> value."""
    seconds: float
    setting: dict[str, Any] = field(default_factory=dict)
    """The setting that validation chose."""
    size: int = 0
    """Numbers in the linear model."""


def missing(name: str, data: Prepared) -> str:
    """Why a task has no such baseline; empty if it has one."""
    if name == TFIDF:
        if data.task.kind not in linear.KINDS:
            return f"{data.task.name} has no TF-IDF baseline: its answers are not about a text as a whole"
    elif data.task.kind not in ("classification", "multilabel", "regression", "tagging"):
        return f"{data.task.name} has no most common answer"
    return ""


def run(name: str, data: Prepared, store: Store, trials: int = TRIALS) -> tuple[Score, bool]:
    """A baseline's score, and whether it was known already."""
    tuning = {"trials": trials, "seed": data.run.seed, "weights": data.weights} if name == TFIDF else {}
    identity = {"baseline": name, "format": _FORMAT, "data": _rows(data), "metric": data.metric, **tuning}
    key = f"baseline {digest(identity)}"
    known = store.about(key)
    if known is not None:
        return Score(**known), True
    began = time.perf_counter()
    setting, size, answer = (
        linear.tune(data, trials) if name == TFIDF else ({}, 0, commonest(data.task, data.train.examples, data.labels))
    )
    score = Score(measure(data, answer), time.perf_counter() - began, setting, size)
    store.note(key, asdict(score))
    return score, False


def measure(data: Prepared, answer: Answering) -> dict[str, dict[str, float]]:
    """All metrics of a function that answers examples, on validation and test rows."""
    parts = {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})
    return {split: data.task.score(part.examples, answer(part.examples), data.labels) for split, part in parts.items()}


def commonest(task: Task, seen: Sequence[Example], labels: Sequence[str]) -> Answering:
    """The same answer for everything: the most frequent one in the examples seen, or the mean of numbers."""
    targets = [e.target for e in seen]
    if task.kind == "tagging":
        tag = _most_frequent([tag for tags in targets for tag in tags], labels)
        return lambda examples: [{"tags": [tag] * len(e.words)} for e in examples]
    answer: Answer
    if task.kind == "classification":
        answer = {"label": _most_frequent(targets, labels)}
    elif task.kind == "multilabel":  # the labels that most rows have: often there is no such label
        counts = Counter(label for labels_of_row in targets for label in labels_of_row)
        answer = {"label": [label for label in labels if 2 * counts[label] > len(seen)]}
    else:
        answer = {"value": sum(targets) / len(targets)}
    return lambda examples: [dict(answer) for _ in examples]


def majority(
    task: Task, examples: Sequence[Example], labels: Sequence[str]
) -> tuple[str | list[str], dict[str, float]] | None:
    """The class, labels or tag that these examples have most often, and the scores of always giving it; None if
    answers are not classes."""
    if task.kind not in ("classification", "multilabel", "tagging"):
        return None
    answers = commonest(task, examples, labels)(examples)
    return label_of(answers[0]), task.score(examples, answers, labels)


def label_of(answer: Answer) -> str | list[str]:
    """The content of an answer of `commonest`: a class, labels, or the tag of all words."""
    return answer["label"] if "label" in answer else answer["tags"][0]  # type: ignore[no-any-return]


def in_words(label: str | Sequence[str]) -> str:
    """`always 'spam'`, `always late, refund` or `always no label`."""
    return f"always {label!r}" if isinstance(label, str) else f"always {', '.join(label) or 'no label'}"


def _most_frequent(targets: Sequence[str], labels: Sequence[str]) -> str:
    counts = Counter(targets)
    return max([*labels, *counts], key=counts.__getitem__)  # the first label among equals


def _rows(data: Prepared) -> list[Any]:
    """The hash of all rows and the sizes of the splits, which tell apart other ways to split."""
    parts = (data.train, data.validation, data.test)
    return [data.data_hash, *(len(part.examples) if part is not None else 0 for part in parts)]
