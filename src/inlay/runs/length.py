"""How long a run trains when the user does not say, and which of its states is kept.

It makes `FEWEST_EPOCHS` passes, or more until it has taken `LEAST_STEPS` steps. With a hundred rows, five passes are
some thirty steps, in which the learning rate rises and falls before anything is learned. The least number of steps is
what a small file can afford on two cores: docs/performance.md has 0.44 s for a step of 32 texts of 32 tokens
(all-MiniLM-L6-v2), so 400 steps of 16 take about one and a half minutes; twice as long texts, three. A few-shot run
(runs/few.py) has steps of its own, and after them none.
"""

from __future__ import annotations

import math

from inlay.errors import RunError
from inlay.runs.few import FEW_SHOT_STEPS
from inlay.runs.run import Run

FEWEST_EPOCHS = 5
LEAST_STEPS = 400
MOST_EVALUATIONS = 20
"""Evaluations of a run with more than `FEWEST_EPOCHS`: more would take longer than training, and choose by luck."""
FEW_TO_VALIDATE = 50
"""Below this, validation rows say little (the standard error of an accuracy is 7 points with 50), and the last state is
kept: with 300 rows, 30 of them held out, that is worth 0.8 points over the best score, and 2.8 over the lowest loss
(docs/results.md). With `patience` the last state is one that was no better, so there the lowest loss decides."""


def settled(run: Run, rows: int, held_out: int = FEW_TO_VALIDATE, few_shot: bool = False, folds: int = 0) -> Run:
    """The run with all settings that follow from its rows; those that are given stay as they are.

    Args:
        rows: how many there are to train on; each window of a long text counts.
        held_out: how many examples there are to validate on.
    """
    changes: dict[str, object] = {"few_shot": few_shot, "folds": folds}
    if few_shot and run.few_shot_steps is None:
        changes["few_shot_steps"] = FEW_SHOT_STEPS
    if run.choose_by is None:
        changes["choose_by"] = _default_choice(run, held_out, folds)
    if run.epochs is None:
        changes |= _default_length(run, rows, few_shot)
    elif run.epochs == 0 and not few_shot:
        raise RunError("epochs=0 (--epochs) is for few-shot training (--few-shot), which fits a head before")
    return run.model_copy(update=changes)


def _default_choice(run: Run, held_out: int, folds: int) -> str:
    if folds or (held_out < FEW_TO_VALIDATE and run.patience is None):
        return "last"
    return "loss" if held_out < FEW_TO_VALIDATE else "score"


def _default_length(run: Run, rows: int, few_shot: bool) -> dict[str, int]:
    if few_shot and run.max_steps is None:
        return {"epochs": 0}
    steps = math.ceil(rows / run.batch_size)
    epochs = max(FEWEST_EPOCHS, math.ceil(LEAST_STEPS / steps))
    if run.max_steps is not None:
        epochs = min(epochs, math.ceil(run.max_steps / steps))
    too_often = run.eval_every is None and epochs > MOST_EVALUATIONS
    settings = {"epochs": epochs}
    return settings | ({"eval_every": steps * math.ceil(epochs / MOST_EVALUATIONS)} if too_often else {})
