"""What to compare, on what terms: methods, settings that all of them try, seeds; and every dataset, read and checked.

Terms are equal: the same rows, steps and seeds, and as many settings tried of every method.
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
"""Fine-tuning everything is not among them: it costs more than all of these together."""


@dataclass(frozen=True)
class Plan:
    """What to compare, and on what terms."""

    methods: Sequence[str] | str = METHODS
    grid: Grid = field(default_factory=dict)
    """Settings that every method tries."""
    seeds: int = 3
    tasks: int | None = None
    """For how many tasks parameters are added up; as many as there are datasets by default."""
    baselines: bool = True
    trials: int = TRIALS
    """Settings that Optuna tries for TF-IDF."""

    def problems(self) -> list[str]:
        """What is wrong with it, apart from what a grid's reader says."""
        found = [] if "method" not in self.grid else ["method is not a key of this grid; list methods (--methods)"]
        found += not_counts(tasks=self.tasks, trials=self.trials)
        if self.baselines:
            found += [*refused(linear.sklearn, "pipeline"), *refused(optuna)]
        return found

    def space(self, run: Run) -> tuple[Space, list[str]]:
        """All settings on one dataset, and everything that is wrong with them."""
        given = {key: getattr(run, key) for key in run.model_fields_set if key != "name"}
        problems: list[str] = []
        specs = split_specs(self.methods, problems)
        rest = {key: values for key, values in self.grid.items() if key != "method"}
        space, more = SweepPlan({"method": specs, **rest}, seeds=self.seeds).space(given)
        return space, [*problems, *more, *_unequal(space)]


@dataclass(frozen=True)
class Part:
    """One dataset with all its runs."""

    about: Dataset
    space: Space
    trials: tuple[Trial, ...]
    data: Mapping[int, Prepared]
    """By seed; all methods have the same rows."""


def read_parts(host: Host, runs: Sequence[Run], plan: Plan, cluster: Cluster | None = None) -> list[Part]:
    """Read every dataset; one error names everything that is wrong with all of them and with the plan."""
    problems = plan.problems() + ([] if cluster is None else cluster.problems(host))
    found: list[Part] = []
    if not runs:
        problems.append("there is nothing to compare on: give a dataset")
    for name, run in zip(_names(runs), runs, strict=True):
        run = run if run.folds is not None else run.model_copy(update={"folds": 0})  # baselines need rows held out
        space, own = plan.space(run)
        own += ["a comparison holds rows out: leave out folds"] if run.folds else []
        own += space.problems(host)
        problems += own
        try:
            if own:  # no run can be made; the data may be wrong too
                prepare(run.model_copy(update={"method": "finetune"}), host)
            else:
                found.append(_part(host, name, run, space, plan.seeds))
        except InlayError as error:
            problems.append(str(error))
    problems += _clashes(found)
    if problems:
        raise RunError("; ".join(dict.fromkeys(problems)))
    return found


def _part(host: Host, name: str, run: Run, space: Space, seeds: int) -> Part:
    numbers = list(range(run.seed, run.seed + seeds))
    made = Trials(host, space, name, numbers).all(list(space.settings()))
    trials = tuple(replace(trial, label=f"{name} {_label(trial, name)}") for trial in made)
    data = {seed: next(trial.data for trial in trials if trial.seed == seed) for seed in numbers}
    first = data[numbers[0]]
    parts = {"train": first.train, "validation": first.validation, "test": first.test}
    rows = {split: len(part.examples) for split, part in parts.items() if part is not None}
    where = run.data if isinstance(run.data, str) else f"{len(run.data)} rows given as objects"
    split = "validation" if first.test is None else "test"
    return Part(Dataset(name, where, first.task.name, first.metric, split, rows), space, trials, data)


def _label(trial: Trial, name: str) -> str:
    """A sweep's label leaves out a method that is the only one, and is the dataset's name where nothing varies."""
    method = str(trial.setting["method"])
    if trial.label == name:
        return method
    return trial.label if trial.label.startswith(method) else f"{method} {trial.label}"


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for every dataset; two of one name are numbered."""
    found: list[str] = []
    for i, run in enumerate(runs):
        name = run.name or (data_name(run.data) if isinstance(run.data, str) else f"data-{i + 1}")
        copies = (f"{name}-{n}" for n in itertools.count(2))
        found.append(name if name not in found else next(copy for copy in copies if copy not in found))
    return found


def _unequal(space: Space) -> list[str]:
    sizes = {branch.method: branch.size for branch in space.branches}
    if len(set(sizes.values())) < 2:
        return []
    told = ", ".join(f"{method} {size}" for method, size in sizes.items())
    return [
        f"methods would not try equally many settings ({told}): vary what all of them have, such as lr, and list sizes "
        "among the methods (houlsby:size=8,houlsby:size=64)"
    ]


def _clashes(parts: Sequence[Part]) -> list[str]:
    found = []
    for one, other in itertools.combinations(parts, 2):
        if {trial.id for trial in one.trials} & {trial.id for trial in other.trials}:
            found.append(f"{one.about.name} and {other.about.name} hold the same rows")
    metrics = {part.about.metric for part in parts}
    if len(metrics) > 1 and metrics & LOWER_IS_BETTER:
        told = ", ".join(f"{part.about.name}: {part.about.metric}" for part in parts)
        found.append(f"these metrics have no common average ({told}); compare such datasets one by one")
    return found
