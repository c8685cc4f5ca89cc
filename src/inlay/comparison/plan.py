"""The plan of a comparison: methods, settings that all of them try, seeds; and every dataset, read and checked.

Terms are equal: the same rows, steps and seeds, and equally many settings for every method.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from inlay.comparison import linear
from inlay.comparison.baselines import TRIALS
from inlay.comparison.table import Dataset
from inlay.engine.host import Host
from inlay.errors import InlayError, RunError
from inlay.metrics import LOWER_IS_BETTER
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.run import Run, data_name
from inlay.sweeps.api import Plan as SweepPlan
from inlay.sweeps.api import not_counts
from inlay.sweeps.grid import Grid, Space, refused
from inlay.sweeps.ray import Cluster
from inlay.sweeps.search import optuna
from inlay.sweeps.trial import Trial, Trials
from inlay.sweeps.values import split_specs

METHODS = ("frozen", "norms", "bitfit", "adapterbias", "lora", "houlsby", "finetune:top=1")
"""Without fine-tuning of the whole base, which costs more than all of these together."""


@dataclass(frozen=True)
class Plan:
    """Which methods to compare, and with which budget."""

    methods: Sequence[str] | str = METHODS
    grid: Grid = field(default_factory=dict)
    """Settings that every method tries."""
    seeds: int = 3
    tasks: int | None = None
    """For how many tasks parameters are added up; by default the number of datasets."""
    baselines: bool = True
    trials: int = TRIALS
    """Settings that Optuna tries for TF-IDF."""

    def problems(self) -> list[str]:
        """What is wrong with the plan, apart from its grid."""
        problems = [] if "method" not in self.grid else ["method is not a key of this grid; list methods (--methods)"]
        problems += not_counts(tasks=self.tasks, trials=self.trials)
        if self.baselines:
            problems += [*refused(linear.sklearn, "pipeline"), *refused(optuna)]
        return problems

    def space(self, run: Run) -> tuple[Space, list[str]]:
        """All settings on one dataset, and everything that is wrong with them."""
        fixed = {key: getattr(run, key) for key in run.model_fields_set if key != "name"}
        problems: list[str] = []
        specs = split_specs(self.methods, problems)
        rest = {key: values for key, values in self.grid.items() if key != "method"}
        space, of_grid = SweepPlan({"method": specs, **rest}, seeds=self.seeds).space(fixed)
        return space, [*problems, *of_grid, *_unequal_budgets(space)]


@dataclass(frozen=True)
class Part:
    """A dataset with all its runs."""

    about: Dataset
    space: Space
    trials: tuple[Trial, ...]
    data: Mapping[int, Prepared]
    """Seed -> the rows, which are the same for all methods."""


def read_parts(host: Host, runs: Sequence[Run], plan: Plan, cluster: Cluster | None = None) -> list[Part]:
    """Read every dataset; a single error names everything that is wrong with them and with the plan."""
    problems = plan.problems() + ([] if cluster is None else cluster.problems(host))
    parts: list[Part] = []
    if not runs:
        problems.append("there is nothing to compare on: give a dataset")
    for name, run in zip(_names(runs), runs, strict=True):
        run = run if run.folds is not None else run.model_copy(update={"folds": 0})  # baselines need rows held out
        space, of_run = plan.space(run)
        of_run += ["a comparison holds rows out: leave out folds"] if run.folds else []
        of_run += space.problems(host)
        problems += of_run
        try:
            if of_run:  # no run can be made; the data may be wrong too
                prepare(run.model_copy(update={"method": "finetune"}), host)
            else:
                parts.append(_part(host, name, run, space, plan.seeds))
        except InlayError as error:
            problems.append(str(error))
    problems += _clashes(parts)
    if problems:
        raise RunError("; ".join(dict.fromkeys(problems)))
    return parts


def _part(host: Host, name: str, run: Run, space: Space, seeds: int) -> Part:
    numbers = list(range(run.seed, run.seed + seeds))
    all_trials = Trials(host, space, name, numbers).all(list(space.settings()))
    trials = tuple(replace(trial, label=f"{name} {_label(trial, name)}") for trial in all_trials)
    data = {seed: next(trial.data for trial in trials if trial.seed == seed) for seed in numbers}
    first = data[numbers[0]]
    parts = {"train": first.train, "validation": first.validation, "test": first.test}
    rows = {split: len(part.examples) for split, part in parts.items() if part is not None}
    where = run.data if isinstance(run.data, str) else f"{len(run.data)} rows given as objects"
    split = "validation" if first.test is None else "test"
    return Part(Dataset(name, where, first.task.name, first.metric, split, rows), space, trials, data)


def _label(trial: Trial, name: str) -> str:
    """A trial's label, always with its method: a sweep leaves out a method that is the only one."""
    method = str(trial.setting["method"])
    if trial.label == name:
        return method
    return trial.label if trial.label.startswith(method) else f"{method} {trial.label}"


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for every dataset; if two have the same name, they are numbered."""
    names: list[str] = []
    for i, run in enumerate(runs):
        name = run.name or (data_name(run.data) if isinstance(run.data, str) else f"data-{i + 1}")
        copies = (f"{name}-{n}" for n in itertools.count(2))
        names.append(name if name not in names else next(copy for copy in copies if copy not in names))
    return names


def _unequal_budgets(space: Space) -> list[str]:
    sizes = {branch.method: branch.size for branch in space.branches}
    if len(set(sizes.values())) < 2:
        return []
    listed = ", ".join(f"{method} {size}" for method, size in sizes.items())
    return [
        f"methods would not try equally many settings ({listed}): vary what all of them have, such as lr, and list "
        "sizes among the methods (houlsby:size=8,houlsby:size=64)"
    ]


def _clashes(parts: Sequence[Part]) -> list[str]:
    problems = []
    for part, other in itertools.combinations(parts, 2):
        if {trial.id for trial in part.trials} & {trial.id for trial in other.trials}:
            problems.append(f"{part.about.name} and {other.about.name} hold the same rows")
    metrics = {part.about.metric for part in parts}
    if len(metrics) > 1 and metrics & LOWER_IS_BETTER:
        listed = ", ".join(f"{part.about.name}: {part.about.metric}" for part in parts)
        problems.append(f"these metrics have no common average ({listed}); compare such datasets one by one")
    return problems
