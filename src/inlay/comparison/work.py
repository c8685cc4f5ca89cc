"""One comparison from datasets and methods to its result.

All runs of all datasets go through one loop, side by side, and into one SQLite file, with the identities that they have
in a sweep: the same command, more methods or more seeds run only what is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inlay.comparison import baselines, linear
from inlay.comparison.baselines import TRIALS
from inlay.comparison.judge import compared, total_parameters
from inlay.comparison.table import Cell, Comparison, Dataset, Line
from inlay.comparison.tradeoff import family
from inlay.comparison.verdict import says
from inlay.engine.host import Host
from inlay.errors import InlayError, RunError
from inlay.metrics import LOWER_IS_BETTER
from inlay.sweeps.api import Plan as SweepPlan
from inlay.sweeps.grid import Grid, Space
from inlay.sweeps.local import Local
from inlay.sweeps.search import optuna
from inlay.sweeps.store import Row, Store
from inlay.sweeps.table import Entry, rank
from inlay.sweeps.trial import Trial, Trials
from inlay.sweeps.values import split_specs
from inlay.training.loop import Callback
from inlay.training.prepare import Prepared, prepare
from inlay.training.run import Run, data_name

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
        for key in ("tasks", "trials"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                found.append(f"{key}={value} is not valid: expected 1 or more")
        if self.baselines:
            found += [problem for check in (lambda: linear.sklearn("pipeline"), optuna) for problem in _refused(check)]
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


def read_parts(host: Host, runs: Sequence[Run], plan: Plan) -> list[Part]:
    """Read every dataset; one error names everything that is wrong with all of them and with the plan."""
    problems = plan.problems()
    found: list[Part] = []
    if not runs:
        problems.append("there is nothing to compare on: give a dataset")
    for name, run in zip(_names(runs), runs, strict=True):
        space, own = plan.space(run)
        own += space.problems(host)
        problems += own
        try:
            if own:  # no run can be made; the data may be wrong too
                prepare(run.model_copy(update={"method": "frozen"}), host)
            else:
                found.append(_part(host, name, run, space, plan.seeds))
        except InlayError as error:
            problems.append(str(error))
    problems += _clashes(found)
    if problems:
        raise RunError("; ".join(dict.fromkeys(problems)))
    return found


class Work:
    """Runs what has not been run, and puts the result together."""

    def __init__(
        self,
        host: Host,
        parts: Sequence[Part],
        plan: Plan,
        name: str,
        store: Store,
        slots: int | None = None,
        callbacks: Sequence[Callback] = (),
        save_every: float = 60.0,
    ):
        self.host, self.parts, self.plan, self.name, self.store = host, parts, plan, name, store
        self.trials = [trial for part in parts for trial in part.trials]
        self.engine = Local(host, store, slots=slots, callbacks=callbacks, save_every=save_every)
        self.notes: list[str] = []
        self.scores: dict[tuple[str, str], dict[int, baselines.Score]] = {}
        """(baseline, dataset) -> seed -> score."""
        store.add(self.trials)

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.trials)

    @property
    def metric(self) -> str:
        """What decides on the first dataset."""
        return self.parts[0].about.metric

    def metric_of(self, label: str) -> str:
        """What decides a run."""
        return next((trial.data.metric for trial in self.trials if trial.label == label), self.metric)

    def rows(self) -> list[Row]:
        """All runs, in the order of datasets and methods."""
        own = {trial.id: trial for trial in self.trials}
        rows = [replace(r, label=own[r.id].label, setting=own[r.id].setting) for r in self.store.rows(own)]
        return [replace(row, position=i) for i, row in enumerate(rows)]

    def run(self) -> Comparison:
        """Baselines first, which are quick; then every run that has not been run."""
        if self.plan.baselines:
            self.run_baselines()
        self.engine.run(self.trials, keep=lambda: {entry.best.id for entry in self._entries().values()})
        return self.result()

    def run_baselines(self) -> None:
        """All baselines that there are; notes say what there is not."""
        for part, name in itertools.product(self.parts, baselines.NAMES):
            first = next(iter(part.data.values()))
            reason = baselines.missing(name, first)
            for seed, data in part.data.items() if not reason else ():
                try:
                    score, was_known = baselines.run(name, data, self.store, self.plan.trials)
                except InlayError as error:
                    reason = f"{name}: {error}"
                    break
                self.scores.setdefault((name, part.about.name), {})[seed] = score
                if not was_known:
                    self._tell(part, name, seed, score)
            if reason:
                self.notes.append(f"{part.about.name}: {reason}")

    def result(self) -> Comparison:
        """What is known by now."""
        datasets = [part.about for part in self.parts]
        entries = self._entries()
        methods = [branch.method for branch in self.parts[0].space.branches]
        tasks = self.plan.tasks or len(datasets)
        lines = [self._method(method, entries, tasks) for method in methods]
        lines += [self._baseline(name) for name in baselines.NAMES if any(key[0] == name for key in self.scores)]
        judged = compared([line for line in lines if line.cells], datasets)
        rows = self.rows()
        notes = [*self.notes, *_failures(rows)]
        settings = len(self.parts[0].trials) // (len(methods) * self.plan.seeds)
        seeds = tuple(self.parts[0].data)
        said = says(judged, datasets)
        where = (tuple(rows), self.store.path, self.store.adapter)
        return Comparison(self.name, tuple(datasets), judged, tasks, seeds, settings, tuple(said), tuple(notes), *where)

    def _entries(self) -> dict[tuple[str, str], Entry]:
        """(method, dataset) -> the setting that validation chose, of those that came to an end."""
        found, rows = {}, {row.id: row for row in self.rows()}
        for part in self.parts:
            own = [rows[trial.id] for trial in part.trials]
            for branch in part.space.branches:
                mine = [row for row in own if row.setting["method"] == branch.method]
                ranking = rank(mine, part.about.metric, "mean", self.plan.seeds)
                if ranking:
                    found[branch.method, part.about.name] = ranking[0]
        return found

    def _method(self, method: str, entries: Mapping[tuple[str, str], Entry], tasks: int) -> Line:
        cells = {}
        for part in self.parts:
            entry = entries.get((method, part.about.name))
            if entry is not None:
                cells[part.about.name] = self._cell(entry, part.about)
        shares = [cell.share for cell in cells.values()]
        total = total_parameters(sum(shares) / len(shares), tasks) if shares else None
        return Line(method, family(method), False, cells, total)

    def _cell(self, entry: Entry, dataset: Dataset) -> Cell:
        values = {row.seed: row.metrics[dataset.split][dataset.metric] for row in entry.runs}
        return Cell(
            values=dict(sorted(values.items())),
            validation=entry.mean,
            setting={key: value for key, value in entry.setting.items() if key != "method"},
            seconds=entry.seconds / len(entry.runs),
            parameters=entry.parameters,
            share=float(entry.best.parameters["share_of_base"]),
            bytes=self._bytes(entry.best.id),
            run=entry.best.id,
        )

    def _bytes(self, id: str) -> int | None:
        """Noted once: adapters of settings that no longer win are not kept."""
        known: int | None = self.store.about(f"bytes {id}")
        adapter = self.store.adapter(id) if known is None else None
        if adapter is not None:
            known = len(adapter.content())
            self.store.note(f"bytes {id}", known)
        return known

    def _baseline(self, name: str) -> Line:
        cells = {}
        for part in self.parts:
            scores = self.scores.get((name, part.about.name))
            if scores:
                metric, split, n = part.about.metric, part.about.split, len(scores)
                values = {seed: score.metrics[split][metric] for seed, score in scores.items()}
                validation = sum(score.metrics["validation"][metric] for score in scores.values()) / n
                seconds = sum(score.seconds for score in scores.values()) / n
                chosen = {str(seed): score.setting for seed, score in scores.items() if score.setting}
                cells[part.about.name] = Cell(values, validation, chosen, seconds)
        return Line(name, name, True, cells, None)

    def _tell(self, part: Part, name: str, seed: int, score: baselines.Score) -> None:
        event: dict[str, Any] = {"event": "baseline", "run": f"{part.about.name} {name} seed={seed}"}
        event |= {"metric": part.about.metric, "metrics": score.metrics}
        for callback in self.engine.callbacks:
            callback(event)


def _part(host: Host, name: str, run: Run, space: Space, seeds: int) -> Part:
    numbers = list(range(run.seed, run.seed + seeds))
    made = Trials(host, space, name, numbers).all(list(space.settings()))
    trials = tuple(replace(trial, label=f"{name} {_label(trial, numbers)}") for trial in made)
    data = {seed: next(trial.data for trial in trials if trial.seed == seed) for seed in numbers}
    first = data[numbers[0]]
    parts = {"train": first.train, "validation": first.validation, "test": first.test}
    rows = {split: len(part.examples) for split, part in parts.items() if part is not None}
    where = run.data if isinstance(run.data, str) else f"{len(run.data)} rows given as objects"
    split = "validation" if first.test is None else "test"
    return Part(Dataset(name, where, first.task.name, first.metric, split, rows), space, trials, data)


def _label(trial: Trial, seeds: Sequence[int]) -> str:
    """A sweep's label leaves out a method that is the only one."""
    method = trial.setting["method"]
    if trial.label.startswith(method):
        return trial.label
    return f"{method} {trial.label}" if len(trial.setting) > 1 or len(seeds) > 1 else str(method)


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


def _failures(rows: Iterable[Row]) -> list[str]:
    return [f"{row.label} failed: {row.error}" for row in rows if row.state == "failed"]


def _refused(check: Callable[[], Any]) -> list[str]:
    try:
        check()
    except InlayError as error:
        return [str(error)]
    return []
