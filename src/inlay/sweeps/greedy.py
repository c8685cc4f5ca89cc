"""Greedy choice of an ensemble, with repetition (Caruana et al., 2004): one pick after the other, each the candidate
that makes the whole best on rows that no candidate has learned from.

Where answers are probabilities or values, a loss decides: the score of a few hundred rows moves in steps of a row, and
many picks would tie. Votes (spans, answers of QA) have no loss; there the score decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inlay import metrics
from inlay.data.batch import Array
from inlay.tasks import Answer, Example, Task

Judge = Callable[[Array], Array]
"""int [ensembles, candidates], how often each counts -> float [ensembles], lower is better."""
_LEAST = 1e-12
"""Below this a probability is raised: a single 0 for a right answer would rule a candidate out."""


def pick(candidates: int, picks: int, judge: Judge, most: int | None = None) -> list[int]:
    """How often each candidate counts. Among equals the one that counts least so far, then the first.

    Args:
        most: how often one may count; without a limit by default.
    """
    counts = np.zeros(candidates, np.int64)
    for _ in range(picks if most is None else min(picks, most * candidates)):
        losses = judge(counts + np.eye(candidates, dtype=np.int64))
        if most is not None:
            losses = np.where(counts < most, losses, np.inf)
        counts[np.lexsort((np.arange(candidates), counts, losses))[0]] += 1
    return [int(count) for count in counts]


def loss_of_mean(chances: Array) -> Judge:
    """The mean negative logarithm of the probability that the ensembles give the right answer.

    Args:
        chances: float [candidates, rows], the probability that each candidate gives it.
    """
    return lambda counts: -np.log(np.maximum(_mean(counts, chances), _LEAST)).mean(1)


def judge_of(
    task: Task, examples: Sequence[Example], answers: Sequence[Sequence[Answer]], labels: Sequence[str], metric: str
) -> tuple[Judge, str]:
    """What measures an ensemble of candidates, and its name.

    Args:
        answers: those of each candidate, to every example.
    """
    if task.kind in ("classification", "multilabel"):
        right = _labelled if task.kind == "classification" else _decided
        chances = np.array([[right(e, a) for e, a in zip(examples, replies, strict=True)] for replies in answers])
        return loss_of_mean(chances.reshape(len(answers), -1)), "loss"
    if task.kind == "regression":
        wanted = np.array([e.target for e in examples], dtype=np.float64)
        values = np.array([[a["value"] for a in replies] for replies in answers])
        return lambda counts: ((_mean(counts, values) - wanted) ** 2).mean(1), "loss"
    sign = 1.0 if metric in metrics.LOWER_IS_BETTER else -1.0

    def voted(counts: Array) -> Array:
        scores = [task.score(examples, _together(task, answers, row, labels), labels)[metric] for row in counts]
        return sign * np.array(scores)

    return voted, metric


def _mean(counts: Array, values: Array) -> Array:
    mean: Array = (counts @ values) / counts.sum(1, keepdims=True)
    return mean


def _labelled(example: Example, answer: Answer) -> float:
    return float(answer["scores"][example.target])


def _decided(example: Example, answer: Answer) -> list[float]:
    """The probability that each label is decided rightly."""
    return [p if label in example.target else 1 - p for label, p in answer["scores"].items()]


def _together(
    task: Task, answers: Sequence[Sequence[Answer]], counts: Sequence[Any], labels: Sequence[str]
) -> list[Answer]:
    members = [i for i, count in enumerate(counts) if count]
    weights = [int(counts[i]) for i in members]
    return [task.together(row, weights, labels) for row in zip(*(answers[i] for i in members), strict=True)]
