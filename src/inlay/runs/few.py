"""Few rows: when a run trains the few-shot way, and where its score then comes from.

With a few dozen rows, texts of one class are first made alike (tasks/_contrast.py), and the head is then fitted by
logistic regression: docs/log.md has what that is worth. A tenth of so few rows says nothing about a score, and is
missed in training. So folds give the score, each trained without the rows it is scored on, and the adapter learns from
all rows.

Both take steps: a file of a hundred rows can afford some 800 in three minutes on two cores (runs/length.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inlay.errors import RunError
from inlay.runs.run import Run

if TYPE_CHECKING:
    from inlay.bank.delta import Method
    from inlay.tasks import Task

FEW_SHOT_BELOW = 200
"""Rows to train on: with fewer, classification is few-shot by itself."""
FEW_SHOT_STEPS = 100
FEW_SHOT_RATE = 0.5
"""What a method's own learning rate is multiplied with."""
FOLDS = 5
"""The folds of a few-shot run with fewer rows than `FEW_SHOT_BELOW`, training and validation together."""


def own_rate(method: Method, few_shot: bool | None) -> float:
    """The learning rate of a run whose settings have none."""
    return method.learning_rate * (FEW_SHOT_RATE if few_shot else 1.0)


def may_begin_by_itself(run: Run) -> bool:
    """Whether a run may be few-shot without being told to: without a teacher, and with its length left open."""
    settings = (run.epochs, run.max_steps, run.eval_every, run.patience)
    return run.few_shot is None and run.head == "linear" and all(s is None for s in (*settings, run.teacher))


def is_few_shot(run: Run, task: Task, method: Method, rows: int) -> bool:
    """Whether a run on this many rows is few-shot; an error if it is asked to be and cannot."""
    fits = task.name == "classification" and run.head == "linear"
    if run.few_shot is None:
        return fits and rows < FEW_SHOT_BELOW and may_begin_by_itself(run) and not method.retunes
    if run.few_shot and run.teacher is not None:
        raise RunError("few_shot (--few-shot) cannot be combined with teacher (--teacher): it needs the class of a row")
    if run.few_shot and task.name != "classification":
        raise RunError(f"few_shot (--few-shot) is for classification, not for {task.name}")
    if run.few_shot and not fits:
        raise RunError(f"few_shot (--few-shot) fits a linear head, not {run.head}")
    if run.few_shot and method.retunes:
        raise RunError(f"few_shot (--few-shot) cannot be combined with {method.name}, which trains in two rounds")
    return run.few_shot


def folds_of(run: Run, task: Task, method: Method, rows: int, has_validation: bool) -> int:
    """How many folds give the score of a run; 0 if rows are held out instead.

    Args:
        rows: how many there are for training and validation together.
        has_validation: whether the data comes with validation rows.
    """
    setting = next((name for name in ("val", "val_size", "fold") if getattr(run, name) is not None), None)
    if run.folds is None:
        enough = setting is None and not has_validation and run.train_size is None
        few = enough and rows < FEW_SHOT_BELOW and is_few_shot(run, task, method, rows)
        return FOLDS if few else 0
    if run.folds:
        if setting is not None or has_validation:
            raise RunError("folds (--folds) are for data without validation rows; leave out one of the two")
        if run.train_size is not None:
            raise RunError("folds (--folds) score all rows, so they cannot be combined with train_size (--train-size)")
        if not task.gives_answers:
            raise RunError(f"folds (--folds) are for tasks that give answers, not for {task.name}")
        if run.folds > rows:
            raise RunError(f"folds={run.folds} (--folds) is more than there are rows: {rows}")
    return run.folds
