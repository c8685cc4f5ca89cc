"""One run's place in the loop: its stages, its position, its best so far. No tensors live here but the best ones.

A run has one stage, its task; more if it first trains on the texts alone, or makes texts of one class alike (few-shot),
or tunes again what its method has kept. A stage starts from the adapter the one before it gave, with a fresh head
unless the task is the same, or with one that is fitted to its rows (few-shot). With folds a run goes through all its
stages once for every fold, and at last for all rows, each time from the beginning.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from inlay import metrics
from inlay.bank.noise import generator
from inlay.errors import RunError
from inlay.runs.few import own_rate
from inlay.runs.prepare import Prepared, Split
from inlay.runs.run import Run
from inlay.tasks import Example, Row, Task
from inlay.tasks import parse as parse_task
from inlay.tasks._contrast import Contrast


@dataclass(frozen=True)
class Stage:
    """One stretch of training with one task."""

    kind: Literal["text", "contrast", "task", "again"]
    task: Task
    labels: tuple[str, ...]
    rows: Sequence[Row]
    examples: Sequence[Example]
    """Validation examples; none if the last state is kept."""
    validation: Sequence[Row]
    metric: str
    epochs: int
    steps: int
    eval_every: int | None
    groups: Sequence[Sequence[int]] | None = None
    """Numbers of rows that belong in the same batch; None if every row may be anywhere."""
    classes: Mapping[int, Sequence[int]] | None = None
    """Class -> the numbers of its rows, if every row should meet another one of its class."""
    fold: int | None = None
    """The fold that this stage is part of; None for the training on all rows."""
    starts_over: bool = False
    """Whether it begins with a fresh adapter."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Steps of one pass over the rows."""
        steps = math.ceil(len(self.rows) / batch_size)
        if self.classes is not None:
            return min(steps, sum(max(1, len(numbers) // 2) for numbers in self.classes.values()))
        return steps if self.groups is None else min(steps, len(self.groups))

    def batches(self, batch_size: int, random: torch.Generator) -> list[list[int]]:
        """The numbers of the rows of every step of one pass, in random order."""
        groups = self.groups if self.classes is None else _pairs(self.classes, random)
        order = torch.randperm(len(self.rows if groups is None else groups), generator=random).tolist()
        if groups is None:
            return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        steps = self.steps_per_epoch(batch_size)
        ends = [len(order) * i // steps for i in range(steps + 1)]
        return [[i for g in order[a:b] for i in groups[g]] for a, b in itertools.pairwise(ends)]


@dataclass(eq=False)
class Job:
    """A run and how far it has come."""

    index: int
    name: str
    data: Prepared
    stages: tuple[Stage, ...] = ()
    state: Literal["waiting", "active", "done", "failed", "pruned"] = "waiting"
    stage_index: int = 0
    step: int = 0
    """Steps taken in this stage."""
    before: int = 0
    """Steps taken in earlier stages."""
    history: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best: dict[str, Any] | None = None
    best_tensors: dict[str, Tensor] = field(default_factory=dict)
    since_best: int = 0
    seconds: float = 0.0
    tokens: int = 0
    """Trained on so far; a token counts every time."""
    problem: str = ""
    result: dict[str, Any] | None = None
    gates: dict[str, Any] = field(default_factory=dict)
    """How shut they were when they were dropped, if training went on after that."""
    held_out: list[list[Any]] = field(default_factory=list)
    """For every fold that is done, the outputs for each row that it is scored on, as plain numbers."""
    is_compared: bool = False
    """Whether its score is compared with those of other settings, so that its error must be known."""
    replicates: list[float] = field(default_factory=list)
    """The deciding score without the first, second ... part of the validation rows, if it is compared."""
    validation_loss: float | None = None
    """The loss of the validation rows with calibrated answers, if it is compared."""
    _order: tuple[tuple[int, int], list[list[int]]] = ((-1, -1), [])

    def __post_init__(self) -> None:
        assert bool(self.data.teacher) == (self.data.run.teacher is not None), "prepare_taught asks the teacher"
        self.stages = tuple(_stages(self.data))

    @property
    def stage(self) -> Stage:
        """The stage under way."""
        return self.stages[self.stage_index]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed", "pruned")

    @property
    def epoch(self) -> float:
        """Passes over the stage's data so far."""
        return self.step / self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass."""
        return self.stage.steps_per_epoch(self.batch_size)

    @property
    def batch_size(self) -> int:
        """Rows of a step of this stage."""
        return rows_of_a_step(self.data.run, self.stage.kind)

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def at(self) -> int:
        """Steps taken in all stages."""
        return self.before + self.step

    @property
    def lr(self) -> float:
        """The learning rate of the next step: a linear rise, then a linear fall to zero, or none."""
        run = self.data.run
        usual = own_rate(self.data.method, run.few_shot)
        chosen = run.pretrain_lr if self.stage.kind == "text" and run.pretrain_lr is not None else run.lr
        return self._scheduled(chosen if chosen is not None else usual)

    @property
    def gate_lr(self) -> float | None:
        """The learning rate of gates that have one of their own."""
        peak = self.data.method.gate_rate
        return None if peak is None else self._scheduled(peak)

    def _scheduled(self, peak: float) -> float:
        run, stage = self.data.run, self.stage
        rise = round(run.warmup * stage.steps)
        if self.step < rise:
            return peak * (self.step + 1) / rise
        if run.schedule == "constant":
            return peak
        return peak * (stage.steps - self.step) / (stage.steps - rise)

    def batch(self, tokenizer: Any) -> list[Row]:
        """The rows of the next step: a function of the seed, the stage and the step."""
        run, stage = self.data.run, self.stage
        epoch, place = divmod(self.step, self.steps_per_epoch)
        if self._order[0] != (self.stage_index, epoch):
            random = generator(run.seed, "order", self.stage_index, epoch)
            self._order = (self.stage_index, epoch), stage.batches(self.batch_size, random)
        rows = [stage.rows[i] for i in self._order[1][place]]
        return stage.task.draw(rows, tokenizer, generator(run.seed, "draw", self.at)) if stage.task.draws else rows

    @property
    def weights(self) -> Sequence[float] | None:
        """Class weights for the loss."""
        return self.data.weights if self.stage.kind not in ("text", "contrast") else None

    def note(self, loss: float, step: int) -> None:
        """Keep the loss of a step; one that is not a number ends the run."""
        if not math.isfinite(loss):
            raise RunError(f"the loss is {loss} at step {step}; try a lower learning rate")
        self.losses.append(loss)

    @property
    def is_due(self) -> bool:
        """Whether the stage is to be evaluated now."""
        interval = self.stage.eval_every or self.steps_per_epoch
        return bool(self.stage.examples) and (self.step % interval == 0 or self.step == self.stage.steps)

    @property
    def is_judged(self) -> bool:
        """Whether the state after the last step has been evaluated."""
        return bool(self.history) and (self.history[-1]["stage"], self.history[-1]["step"]) == (
            self.stage.kind,
            self.at,
        )

    def judge(self, scores: Mapping[str, float], loss: float | None = None) -> bool:
        """Enter an evaluation; True if it is the best so far, and its state is one to keep.

        By the metric, and among equals by the loss; or by the loss alone, if the run says so. Folds keep the last.

        Args:
            loss: of the validation rows, if it is known.
        """
        stage, value = self.stage, scores[self.stage.metric]
        entry = {"stage": stage.kind, "step": self.at, "epoch": round(self.epoch, 3), "metrics": dict(scores)}
        interval = stage.eval_every or self.steps_per_epoch
        recent = self.losses[-(self.step % interval or interval) :]  # since the evaluation before
        held_out = {} if loss is None else {"validation_loss": loss}
        fold = {} if stage.fold is None else {"fold": stage.fold + 1}
        self.history.append({**entry, **fold, "loss": sum(recent) / len(recent), **held_out})
        choose_by, before = self.data.run.choose_by, self.best or {}
        if choose_by == "loss" and loss is not None:
            is_better = metrics.better("loss", loss, before.get("loss"))
        else:
            is_better = metrics.better(stage.metric, value, before.get("value"))
        self.since_best = 0 if is_better else self.since_best + 1  # a tie is no progress, or it would never end
        if not is_better and (choose_by == "loss" or not self._breaks_tie(value, loss)):
            return False
        place = {"step": self.at, "epoch": round(self.epoch, 3)}
        self.best = {"value": value, **place, "metrics": dict(scores), "loss": loss}
        return stage.fold is None and choose_by != "last"

    @property
    def kept(self) -> dict[str, Any]:
        """The step and epoch that the kept state comes from; those of folds do not count."""
        best = self.best if self.data.run.choose_by != "last" else None
        if best is not None:
            return {"step": best["step"], "epoch": best["epoch"]}
        folds = sum(stage.steps for stage in self.stages if stage.fold is not None)
        return {"step": self.at - folds, "epoch": round(self.epoch, 3)}

    def _breaks_tie(self, value: float, loss: float | None) -> bool:
        """Whether a score that was reached before comes with a lower loss now."""
        before = self.best or {}
        known = before.get("loss")
        return value == before.get("value") and loss is not None and known is not None and loss < known

    @property
    def is_over(self) -> bool:
        """Whether the stage has finished."""
        patience = self.data.run.patience
        return self.step >= self.stage.steps or (patience is not None and self.since_best >= patience)

    def next_stage(self) -> bool:
        """Go on to the next stage; False if this was the last."""
        if self.stage_index + 1 == len(self.stages):
            return False
        self.before += self.step
        self.stage_index += 1
        self.step = self.since_best = 0
        self.best, self.best_tensors = None, {}
        return True


def rows_of_a_step(run: Run, kind: str) -> int:
    """Rows of a step in a stage of this kind."""
    rows = run.pretrain_batch_size if kind == "text" else None
    return run.batch_size if rows is None else rows


def _stages(data: Prepared) -> list[Stage]:
    stages: list[Stage] = []
    numbers = range(len(data.train.examples))
    for fold, held_out in enumerate(data.folds):
        scored = _part_of(data.validation, held_out)
        learned = set(numbers).difference(held_out)
        text = None if data.text is None else _part_of(data.text, sorted(learned))
        stages += _round(data, _part_of(data.train, sorted(learned)), scored, text, fold)
    validation = data.validation if not data.folds else Split([], [])
    return stages + _round(data, data.train, validation, data.text, None)


def _round(data: Prepared, train: Split, scored: Split, text: Split | None, fold: int | None) -> list[Stage]:
    """The stages from a fresh adapter to one that is trained on these rows."""
    run, stages = data.run, []

    def add(stage: Stage, limit: int | None = None) -> None:
        steps = stage.epochs * stage.steps_per_epoch(rows_of_a_step(run, stage.kind)) if stage.epochs else stage.steps
        stages.append(replace(stage, steps=steps if limit is None else min(steps, limit), fold=fold))

    if text is not None:
        fields = parse_task("mlm"), ("word",), text.rows, (), (), "perplexity"
        add(Stage("text", *fields, run.pretrain_epochs, 0, None))
    if run.few_shot:
        classes: dict[int, list[int]] = {}
        for number, row in enumerate(train.rows):
            classes.setdefault(row.target, []).append(number)
        contrast = Contrast(sharpness=run.few_shot_temperature), data.labels, train.rows, (), (), data.metric
        assert run.few_shot_steps is not None  # settled with the data
        add(Stage("contrast", *contrast, 0, run.few_shot_steps, None, None, classes))
    rows = train.rows if data.unlabelled is None else [*train.rows, *data.unlabelled.rows]
    main = (data.task, data.labels, rows, scored.examples, scored.rows, data.metric)
    groups = _groups(data.task, train) if data.task.compares_rows else None
    assert run.epochs is not None  # settled with the data
    # a fold is only evaluated at its end
    eval_every = run.eval_every if fold is None else run.epochs * math.ceil(len(rows) / run.batch_size)
    add(Stage("task", *main, run.epochs, 0, eval_every, groups), run.max_steps)
    if data.method.retunes:
        add(Stage("again", *main, max(1, run.epochs // 3), 0, eval_every, groups), run.max_steps)
    stages[0] = replace(stages[0], starts_over=True)
    return stages


def _part_of(part: Split, chosen: Sequence[int]) -> Split:
    """Some of the examples of a part, with their rows."""
    number_of = {example: i for i, example in enumerate(chosen)}
    rows = [replace(row, example=number_of[row.example]) for row in part.rows if row.example in number_of]
    return Split([part.examples[i] for i in chosen], rows)


def _pairs(classes: Mapping[int, Sequence[int]], random: torch.Generator) -> list[list[int]]:
    """Rows of one class in twos, drawn anew; the last of an odd number joins one of the pairs."""
    all_pairs: list[list[int]] = []
    for numbers in classes.values():
        order = [numbers[i] for i in torch.randperm(len(numbers), generator=random).tolist()]
        pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
        if len(pairs) > 1 and len(pairs[-1]) == 1:
            single = pairs.pop()
            pairs[-1] += single
        all_pairs += pairs
    return all_pairs


def _groups(task: Task, train: Split) -> list[list[int]]:
    """The numbers of the rows about each subject."""
    numbers_of_subject: dict[Hashable, list[int]] = {}
    for number, row in enumerate(train.rows):
        numbers_of_subject.setdefault(task.subject(train.examples[row.example]), []).append(number)
    return list(numbers_of_subject.values())


STATE = (
    "state",
    "stage_index",
    "step",
    "before",
    "history",
    "losses",
    "best",
    "since_best",
    "seconds",
    "tokens",
    "problem",
    "result",
    "gates",
    "held_out",
    "replicates",
    "validation_loss",
)
"""What a checkpoint keeps of a job beside tensors."""
