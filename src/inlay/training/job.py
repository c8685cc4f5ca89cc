"""One run's place in the loop: its stages, its position, its best so far. No tensors live here but the best ones.

A run has one stage, its task; two if it first trains on the texts alone, or tunes again what its method has kept. A
stage starts from the adapter the one before it gave, with a fresh head unless the task is the same.
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
from inlay.runs.prepare import Prepared, Split
from inlay.tasks import Example, Row, Task
from inlay.tasks import parse as parse_task


@dataclass(frozen=True)
class Stage:
    """One stretch of training with one task."""

    kind: Literal["text", "task", "again"]
    task: Task
    labels: tuple[str, ...]
    rows: Sequence[Row]
    examples: Sequence[Example]
    """Validation examples; none where the last state is taken."""
    validation: Sequence[Row]
    metric: str
    epochs: int
    steps: int
    eval_every: int | None
    groups: Sequence[Sequence[int]] | None = None
    """Numbers of rows that belong in the same batch; None where every row may be anywhere."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Steps of one pass over the rows."""
        steps = math.ceil(len(self.rows) / batch_size)
        return steps if self.groups is None else min(steps, len(self.groups))

    def batches(self, batch_size: int, random: torch.Generator) -> list[list[int]]:
        """The numbers of the rows of every step of one pass, in random order."""
        order = torch.randperm(len(self.rows if self.groups is None else self.groups), generator=random).tolist()
        if self.groups is None:
            return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        steps = self.steps_per_epoch(batch_size)
        ends = [len(order) * i // steps for i in range(steps + 1)]
        return [[i for g in order[a:b] for i in self.groups[g]] for a, b in itertools.pairwise(ends)]


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
    """Trained on so far; a token that comes again counts again."""
    problem: str = ""
    result: dict[str, Any] | None = None
    gates: dict[str, Any] = field(default_factory=dict)
    """How shut they were when they were dropped, if training went on after that."""
    _order: tuple[tuple[int, int], list[list[int]]] = ((-1, -1), [])

    def __post_init__(self) -> None:
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
        return self.stage.steps_per_epoch(self.data.run.batch_size)

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
        """The learning rate of the next step: a linear rise, then a linear fall to zero."""
        run = self.data.run
        return self._scheduled(run.lr if run.lr is not None else self.data.method.learning_rate)

    @property
    def gate_lr(self) -> float | None:
        """The same for gates that have a learning rate of their own."""
        peak = self.data.method.gate_rate
        return None if peak is None else self._scheduled(peak)

    def _scheduled(self, peak: float) -> float:
        run, stage = self.data.run, self.stage
        rise = round(run.warmup * stage.steps)
        if self.step < rise:
            return peak * (self.step + 1) / rise
        return peak * (stage.steps - self.step) / (stage.steps - rise)

    def batch(self, tokenizer: Any) -> list[Row]:
        """The rows of the next step: a function of the seed, the stage and the step."""
        run, stage = self.data.run, self.stage
        epoch, place = divmod(self.step, self.steps_per_epoch)
        if self._order[0] != (self.stage_index, epoch):
            random = generator(run.seed, "order", self.stage_index, epoch)
            self._order = (self.stage_index, epoch), stage.batches(run.batch_size, random)
        rows = [stage.rows[i] for i in self._order[1][place]]
        return stage.task.draw(rows, tokenizer, generator(run.seed, "draw", self.at)) if stage.task.draws else rows

    @property
    def weights(self) -> Sequence[float] | None:
        """Class weights for the loss."""
        return self.data.weights if self.stage.kind != "text" else None

    def note(self, loss: float, step: int) -> None:
        """Keep the loss of a step; one that is not a number ends the run."""
        if not math.isfinite(loss):
            raise RunError(f"the loss of {self.name} is {loss} at step {step}; try a lower learning rate")
        self.losses.append(loss)

    @property
    def is_due(self) -> bool:
        """Whether the stage is to be evaluated now."""
        every = self.stage.eval_every or self.steps_per_epoch
        return bool(self.stage.examples) and (self.step % every == 0 or self.step == self.stage.steps)

    @property
    def is_judged(self) -> bool:
        """Whether the state after the last step has been evaluated."""
        return bool(self.history) and (self.history[-1]["stage"], self.history[-1]["step"]) == (
            self.stage.kind,
            self.at,
        )

    def judge(self, scores: Mapping[str, float], loss: float | None = None) -> bool:
        """Enter an evaluation; True if it is the best so far: by the metric, and among equals by the loss.

        Args:
            loss: of the validation rows, if it is known.
        """
        stage, value = self.stage, scores[self.stage.metric]
        entry = {"stage": stage.kind, "step": self.at, "epoch": round(self.epoch, 3), "metrics": dict(scores)}
        every = stage.eval_every or self.steps_per_epoch
        recent = self.losses[-(self.step % every or every) :]  # since the evaluation before
        held_out = {} if loss is None else {"validation_loss": loss}
        self.history.append({**entry, "loss": sum(recent) / len(recent), **held_out})
        is_better = metrics.better(stage.metric, value, None if self.best is None else self.best["value"])
        self.since_best = 0 if is_better else self.since_best + 1  # a tie is no progress, or it would never end
        if not is_better and not self._breaks_tie(value, loss):
            return False
        place = {"step": self.at, "epoch": round(self.epoch, 3)}
        self.best = {"value": value, **place, "metrics": dict(scores), "loss": loss}
        return True

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


def _stages(data: Prepared) -> list[Stage]:
    run, stages = data.run, []

    def add(stage: Stage, most: int | None = None) -> None:
        steps = stage.epochs * stage.steps_per_epoch(run.batch_size)
        stages.append(replace(stage, steps=steps if most is None else min(steps, most)))

    if data.text is not None:
        text = parse_task("mlm"), ("word",), data.text.rows, (), (), "perplexity"
        add(Stage("text", *text, run.pretrain_epochs, 0, None))
    main = (data.task, data.labels, data.train.rows, data.validation.examples, data.validation.rows, data.metric)
    groups = _groups(data.task, data.train) if data.task.compares_rows else None
    assert run.epochs is not None  # settled with the data
    add(Stage("task", *main, run.epochs, 0, run.eval_every, groups), run.max_steps)
    if data.method.retunes:
        add(Stage("again", *main, max(1, run.epochs // 3), 0, run.eval_every, groups), run.max_steps)
    return stages


def _groups(task: Task, train: Split) -> list[list[int]]:
    """The numbers of the rows about each subject."""
    found: dict[Hashable, list[int]] = {}
    for number, row in enumerate(train.rows):
        found.setdefault(task.subject(train.examples[row.example]), []).append(number)
    return list(found.values())


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
)
"""What a checkpoint keeps of a job beside tensors."""
