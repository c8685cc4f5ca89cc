"""Run a recipe: the paper's table on your own base and data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from inlay.comparison.plan import Part, Plan
from inlay.comparison.runner import ComparisonRunner
from inlay.comparison.table import Comparison
from inlay.engine.host import Host
from inlay.recipes.plan import Changes, Chosen, choose, fitted, read_all
from inlay.recipes.reading import find
from inlay.recipes.recipe import Recipe
from inlay.recipes.table_beside_paper import TableBesidePaper, put_beside_paper
from inlay.sweeps.store import Store
from inlay.tracking.events import Callback

_now = time.monotonic


def run(
    host: Host,
    recipe: Recipe | str,
    folder: str | os.PathLike[str],
    changes: Changes | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    save_every: float = 60.0,
    minutes: float | None = None,
    against: str | None = None,
) -> TableBesidePaper:
    """Train what a table needs, and put the results beside the paper's.

    Args:
        folder: holds a folder or a file for every dataset; missing ones are left out.
        changes: what differs from the paper.
        store: a SQLite file for results; a run with the same file goes on where it stopped, and repeats nothing.
        slots, callbacks, save_every: as for `inlay.train`.
        minutes: stop after this time, and give the table of what is done; 0 trains nothing.
        against: a row; the table says how far the others are from it, with intervals.
    """
    known = find(recipe) if isinstance(recipe, str) else recipe
    chosen = fitted(host, choose(known, os.fspath(folder), changes or Changes(), host.base.name))
    if against is not None:
        chosen.row(against)  # a wrong name is an error before anything is trained
    parts = read_all(host, chosen)
    with Store(store) as opened:
        runner = make_runner(host, chosen, parts, opened, slots, callbacks, save_every)
        return put_beside_paper(chosen, runner, within(minutes, runner, runner.run), against)


def make_runner(
    host: Host,
    chosen: Chosen,
    parts: Sequence[Part],
    store: Store,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    save_every: float = 60.0,
) -> ComparisonRunner:
    """All runs, prepared."""
    plan = Plan(seeds=chosen.seeds, baselines=any(row.is_baseline for row in chosen.rows))
    return ComparisonRunner(host, parts, plan, chosen.recipe.name, store, slots, callbacks, save_every)


def within(minutes: float | None, runner: ComparisonRunner, run: Callable[[], Comparison]) -> Comparison:
    """The result of a run, or what is known when the time is up; the next run goes on from there."""
    if minutes is None:
        return run()
    if minutes <= 0:
        return runner.result()
    clock = _Clock(60 * minutes)
    runner.engine.callbacks = [*runner.engine.callbacks, clock]
    try:
        return run()
    except KeyboardInterrupt:
        if not clock.has_rung:
            raise
        return runner.result()


class _Clock:
    """Stops the loop as Ctrl-C does when the time is up: it saves, and the next run goes on from there."""

    def __init__(self, seconds: float):
        self.until = _now() + seconds
        self.has_rung = False

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] in ("step", "eval") and _now() > self.until:
            self.has_rung = True
            raise KeyboardInterrupt
