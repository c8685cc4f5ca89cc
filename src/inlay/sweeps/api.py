"""`inlay.sweep`: many settings of one run, side by side, ranked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inlay.bank.delta import parse
from inlay.engine.host import Host
from inlay.errors import RunError, suggest
from inlay.library.adapter import Adapter
from inlay.library.defaults import RATES, lasting
from inlay.library.ensemble import Ensemble
from inlay.library.library import Library, check_name
from inlay.runs.prepare import Prepared
from inlay.runs.run import Run, data_name
from inlay.sweeps import ensemble as together
from inlay.sweeps.grid import Grid, Setting, Space, read_grid
from inlay.sweeps.local import Local
from inlay.sweeps.random_search import draw
from inlay.sweeps.ray import Cluster, make_engine, read_engine
from inlay.sweeps.search import PRUNERS, OptunaSearch
from inlay.sweeps.store import Row, Store
from inlay.sweeps.table import SELECT, Entry, Select, Sweep, rank, worth_keeping
from inlay.sweeps.trial import Trial, Trials, digest
from inlay.sweeps.winner import Verdict, decide, distances
from inlay.tracking.events import Callback
from inlay.training.api import card_facts
from inlay.training.ensemble import refuse


@dataclass(frozen=True)
class Plan:
    """What to try: the same on the command line, in a file and in Python."""

    grid: Grid = field(default_factory=dict)
    random: int | None = None
    """How many combinations to draw; all of them by default."""
    search: str | None = None
    """`optuna`, or nothing."""
    trials: int | None = None
    """How many settings a search tries."""
    pruner: str | None = None
    seeds: int = 1
    select: Select = "careful"
    ensemble: int | None = None
    """How many picks among the runs answer as one; the winner alone by default."""
    report: str | None = None
    """A metric to show beside the one that decides."""

    def problems(self) -> list[str]:
        """Values that are not valid, and settings that do not go together."""
        problems = not_counts(random=self.random, trials=self.trials, seeds=self.seeds)
        if type(self.report) not in (str, type(None)):
            problems.append(f"report={self.report} is not valid: expected the name of a metric")
        if self.search not in (None, "optuna"):
            problems.append(f"unknown search {self.search!r}. {suggest(str(self.search), ['optuna'])}")
        if self.select not in SELECT:
            problems.append(f"select={self.select} is not valid. {suggest(str(self.select), SELECT)}")
        if self.pruner is not None and self.pruner not in PRUNERS:
            problems.append(f"unknown pruner {self.pruner!r}. {suggest(str(self.pruner), PRUNERS)}")
        if self.search is not None and self.random is not None:
            problems.append("random draws and a search cannot be combined")
        if self.search is not None and self.trials is None:
            problems.append("a search needs a number of trials")
        if self.search is None and self.trials is not None:
            problems.append("trials are for a search; random draws have their own number")
        if self.search is None and self.pruner is not None:
            problems.append("a pruner is for a search; other runs are never stopped early")
        return problems

    def space(self, settings: dict[str, Any]) -> tuple[Space, list[str]]:
        """The space of its grid and these settings, and everything that is wrong with both."""
        free = self.random is not None or self.search is not None
        space, problems = read_grid(settings, self.grid, ranges=free)
        if self.ensemble is not None:
            problems = [*problems, *together.problems(self.ensemble, self.grid, settings)]
        return space, [*self.problems(), *problems]


def not_counts(**values: Any) -> list[str]:
    """What is wrong with numbers that must be 1 or more, or None."""
    wrong = {key: value for key, value in values.items() if value is not None and (type(value) is not int or value < 1)}
    return [f"{key}={value} is not valid: expected 1 or more" for key, value in wrong.items()]


def sweep(
    host: Host,
    run: Run,
    grid: Grid | None = None,
    *,
    random: int | None = None,
    search: str | None = None,
    trials: int | None = None,
    pruner: str | None = None,
    seeds: int = 1,
    select: Select = "careful",
    ensemble: int | None = None,
    report: str | None = None,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    save_every: float = 60.0,
    best: bool = False,
    library: Library | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
) -> Sweep:
    """Run many settings side by side and rank them by validation.

    Args:
        run: settings that all runs share.
        grid: key -> values. Keys are settings of a run, `method`, or options of methods; `"1e-4..1e-2"` is a range.
        random: draw this many combinations instead of running all.
        search: `optuna` asks for settings one by one, `trials` of them. Its `pruner` is median, hyperband or none.
        seeds: how many seeds every setting runs with, from the run's own.
        select: what wins: the best mean over seeds, or the best single run; `careful` takes, of all settings
            that are less than a standard error worse than the best mean, the one with the lowest validation loss.
        ensemble: choose this many runs, with repetition, that answer best together (`Sweep.ensemble`). All runs then
            hold out the same rows.
        report: a metric to show beside `run.metric`, which decides.
        name: what the winner is called; by default the run's name, or its data's.
        store: a SQLite file for results; a sweep with the same file goes on where it stopped, and repeats nothing.
        slots, callbacks, save_every: as for `inlay.train`.
        best: put the winner into the library.
        engine: `local`, or `ray` for the workers of a Ray cluster; `slots` are then those of each worker.
        address: the address of the cluster; by default one that this machine is part of, else one that is started here.
        workers: how many; by default one for every GPU, or for every machine where there is none.
    """
    plan = Plan(grid or {}, random, search, trials, pruner, seeds, select, ensemble, report)
    settings = {key: getattr(run, key) for key in run.model_fields_set if key != "name"}
    space, problems = plan.space(settings)
    problems += space.problems(host)
    cluster, engine_problems = read_engine(engine, address, workers)
    problems += engine_problems + (cluster.problems(host) if cluster is not None else [])
    if problems:
        raise RunError("; ".join(dict.fromkeys(problems)))
    name = check_name(name or run.name or (data_name(run.data) if isinstance(run.data, str) else "sweep"))
    with Store(store) as opened:
        runner = SweepRunner(host, plan, space, name, opened, slots, callbacks, save_every, cluster, library)
        return runner.run(best, library)


class SweepRunner:
    """One sweep from its plan to its result."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
        space: Space,
        name: str,
        store: Store,
        slots: int | None = None,
        callbacks: Sequence[Callback] = (),
        save_every: float = 60.0,
        cluster: Cluster | None = None,
        library: Library | None = None,
    ):
        self.host, self.plan, self.space, self.name, self.store = host, plan, space, name, store
        first = int(space.given.get("seed", 0))
        self.seeds = list(range(first, first + plan.seeds))
        self.maker = Trials(host, space, name, self.seeds, library, plan.ensemble is not None)
        self.engine = make_engine(host, store, cluster, slots, callbacks, save_every)
        self.search: OptunaSearch | None = None
        self.trials: list[Trial] = []
        self.data: Prepared
        self.prepare()

    def prepare(self) -> None:
        """Read the data, and make the trials that are known before anything has run."""
        plan, first = self.plan, self.seeds[0]
        if plan.search is None:
            self.trials = self.maker.all(self._settings())
            self.data = self.trials[0].data
        else:
            self.data = self.maker.make(next(self.space.settings()), first).data
        if plan.ensemble is not None:
            refuse(self.data.task)
        if plan.report is not None:
            self.data.task.primary(plan.report, self.data.labels)  # refuses what the task does not have
        if plan.search is None:
            self.store.add(self.trials)
            return
        pruner, study = plan.pruner or "median", self._study()
        self.search = OptunaSearch(self.maker, self.store, study, plan.trials or 1, seed=first, pruner=pruner)
        self.trials = self.search.known()

    @property
    def runs(self) -> int:
        """How many runs the whole sweep has."""
        return (self.plan.trials or 1) * len(self.seeds) if self.search is not None else len(self.trials)

    def run(self, best: bool = False, library: Library | None = None) -> Sweep:
        """Run what has not run yet, and rank everything."""
        self.engine.run(self.trials, self.search, self._wanted)
        result = self.result()
        if self.plan.ensemble is not None and result.ranking:
            result = replace(result, ensemble=self._together(result, self.plan.ensemble))
        return self.put(result, Library() if library is None else library) if best and result.ranking else result

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return self.data.metric

    def result(self) -> Sweep:
        """The sweep as it stands now."""
        rows = self._rows()
        ranking = rank(rows, self.metric, self.plan.select, len(self.seeds))
        verdict = self._verdict(ranking) if self.plan.select == "careful" else None
        return Sweep(
            self.name,
            self.metric,
            self.plan.select,
            tuple(self.space.keys),
            tuple(rows),
            ranking,
            self.store.path,
            verdict=verdict,
            report=self.plan.report,
            _load=self.store.adapter,
        )

    def _verdict(self, ranking: Sequence[Entry]) -> Verdict | None:
        distance_of = distances(self.space, ranking, self.data.run.few_shot)
        return decide(ranking, self.metric, distance_of, self.space.keys) if ranking else None

    def _wanted(self) -> set[str]:
        """The runs whose adapters are kept: those that win by any `select`, and the candidates of an ensemble."""
        rows, seeds = self._rows(), len(self.seeds)
        verdict = self._verdict(rank(rows, self.metric, "careful", seeds))
        wins = {row.id for row in verdict.entry.runs} if verdict is not None else set()
        members = together.candidates(rows, self.metric) if self.plan.ensemble is not None else []
        return worth_keeping(rows, self.metric, seeds) | wins | {row.id for row in members}

    def _together(self, result: Sweep, picks: int) -> together.Chosen:
        """The ensemble; a run whose adapter was deleted is trained again."""
        rows = together.candidates(result.rows, self.metric)
        missing = [row.id for row in rows if self.store.adapter(row.id) is None]
        if missing:
            self._again(missing)
        return together.choose(self.host, self.data, rows, result.winner, picks, self.name, self._adapter)

    def _adapter(self, row: Row) -> Adapter:
        adapter = self.store.adapter(row.id)
        if adapter is None:
            raise RunError(f"the adapter of {row.label} could not be made again")
        return adapter

    def put(self, result: Sweep, library: Library) -> Sweep:
        """Put the winner, or the ensemble, into a library, with the sweep's summary on its card."""
        ensemble, winner = result.ensemble, result.winner
        if ensemble is None and self.store.adapter(winner.id) is None:  # deleted, or not kept
            self._again([winner.id])
        adapter: Adapter | Ensemble = self._adapter(winner) if ensemble is None else ensemble.adapter
        members = [winner] if ensemble is None else [row for row, _ in ensemble.members]
        parameters = Ensemble.parameters([{"parameters": row.parameters} for row in members])
        facts = card_facts(self.host.base, parameters, sum(row.seconds for row in members))
        parents = [f"sweep:{row.id}" for row in members]
        entry = library.put(adapter, self.name, parents=parents, **facts, sweep=result.summary())
        return replace(result, version=entry.version, library=library.root)

    def _again(self, ids: Sequence[str]) -> None:
        """Train runs once more; everything that decides their result is in their settings."""
        trials = {trial.id: trial for trial in (self.trials if self.search is None else self.search.known())}
        self.store.set({id: {"state": "waiting"} for id in ids})
        again = Local(self.host, self.store, slots=self.engine.slots, callbacks=self.engine.callbacks)
        again.run([trials[id] for id in ids], keep=lambda: self._wanted() | set(ids))

    def _settings(self) -> list[Setting]:
        if self.plan.random is not None:
            return draw(self.space, self.plan.random, self.seeds[0])
        return list(self.space.settings())

    def _rows(self) -> list[Row]:
        if self.search is None:
            return self.store.rows_of(self.trials)
        return [replace(row, position=i) for i, row in enumerate(self.store.study(self._study()))]

    def _study(self) -> str:
        """A name for all that decides the search's settings, the number of trials left out."""
        branches = [repr(replace(branch, method=lasting(branch.method))) for branch in self.space.branches]
        base = (self.host.base.identity(True), self.host.base.form or "", str(self.host.base.dtype))
        settings = {
            key: value for key, value in self.space.given.items() if key not in ("name", "val", "test", "unlabelled")
        }
        question = {"space": branches, "given": settings, "data": self.data.data_hash, "base": base}
        teacher = {"teacher": self.data.teacher} if self.data.teacher else {}
        one_split = {"one_split": True} if self.maker.shared else {}
        return digest(question | {"seeds": self.seeds} | teacher | one_split | self._rates())

    def _rates(self) -> dict[str, Any]:
        """Methods' own learning rates that have changed since the first version, so that a search does not mix them."""
        if "lr" in self.space.keys or self.space.given.get("lr") is not None:
            return {}
        rates = {type(method).name: method.learning_rate for method in (parse(b.method) for b in self.space.branches)}
        changed = {name: rate for name, rate in rates.items() if name in RATES}
        return {"rates": changed} if changed else {}
