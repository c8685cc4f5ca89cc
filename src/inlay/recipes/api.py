"""Run a recipe: the paper's table on one's own base and data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

from inlay.comparison.plan import Part, Plan
from inlay.comparison.work import Work
from inlay.engine.host import Host
from inlay.recipes.beside import Beside, put_beside
from inlay.recipes.plan import Changes, Chosen, choose, read_all
from inlay.recipes.reading import find
from inlay.recipes.recipe import Recipe
from inlay.sweeps.store import Store
from inlay.tracking.events import Callback


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
) -> Beside:
    """Train what a table needs, and put the results beside the paper's.

    Args:
        folder: holds a folder or a file for every dataset; those that are not there are left out.
        changes: what shall not be as the paper has it.
        store: a SQLite file for results; a recipe that is run again with it goes on, and repeats nothing.
        slots, callbacks, save_every: as for `inlay.train`.
    """
    known = find(recipe) if isinstance(recipe, str) else recipe
    chosen = choose(known, os.fspath(folder), changes or Changes())
    parts = read_all(host, chosen)
    opened = Store(store)
    work = make_work(host, chosen, parts, opened, slots, callbacks, save_every)
    if store is None:  # in memory: the result still needs it
        return put_beside(chosen, work.run(), host.base.name)
    with closing(opened):
        return put_beside(chosen, work.run(), host.base.name)


def make_work(
    host: Host,
    chosen: Chosen,
    parts: Sequence[Part],
    store: Store,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    save_every: float = 60.0,
) -> Work:
    """All runs, ready to go."""
    plan = Plan(seeds=chosen.seeds, baselines=False)
    return Work(host, parts, plan, chosen.recipe.name, store, slots, callbacks, save_every)
