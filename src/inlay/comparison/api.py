"""`inlay.compare`: methods on equal terms, on one or several datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from inlay.comparison.baselines import TRIALS
from inlay.comparison.plan import METHODS, Plan, read_parts
from inlay.comparison.runner import ComparisonRunner
from inlay.comparison.table import Comparison
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library.library import check_name
from inlay.runs.run import Run
from inlay.sweeps.grid import Grid
from inlay.sweeps.ray import read_engine
from inlay.sweeps.store import Store
from inlay.tracking.events import Callback


def compare(
    host: Host,
    runs: Run | Sequence[Run],
    methods: Sequence[str] | str = METHODS,
    grid: Grid | None = None,
    *,
    seeds: int = 3,
    tasks: int | None = None,
    baselines: bool = True,
    trials: int = TRIALS,
    name: str = "comparison",
    store: str | os.PathLike[str] | None = None,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    save_every: float = 60.0,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
) -> Comparison:
    """Train methods with equal budgets, side by side, and compare cost and quality.

    Validation chooses the settings of every method on every dataset; scores are those of test rows, if there are any.

    Args:
        runs: a run for every dataset: its data, and the settings that all methods share.
        methods: specs.
        grid: settings that every method tries, such as `{"lr": [3e-4, 1e-3]}`.
        seeds: how many, counted from the run's own.
        tasks: for how many tasks parameters are added up; by default the number of datasets.
        baselines: also the commonest answer, and TF-IDF with a linear model.
        trials: settings that Optuna tries for TF-IDF, with every seed.
        store: a SQLite file for results; a comparison that is called with it again goes on and repeats nothing.
        slots, callbacks, save_every: as for `inlay.train`.
        engine, address, workers: as for `inlay.sweep`.
    """
    plan = Plan(methods, grid or {}, seeds, tasks, baselines, trials)
    cluster, problems = read_engine(engine, address, workers)
    if problems:
        raise RunError("; ".join(problems))
    parts = read_parts(host, [runs] if isinstance(runs, Run) else runs, plan, cluster)
    name = check_name(name)
    with Store(store) as opened:
        return ComparisonRunner(host, parts, plan, name, opened, slots, callbacks, save_every, cluster).run()
