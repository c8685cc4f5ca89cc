"""From a recipe and a folder to the runs of a comparison.

Rows that try the same settings on every dataset are a *group*, and a method that two rows of a group have is run once.
A group on a dataset is a part of the comparison; all parts go through one loop and into one file.

`tune` adds to every row another that tries values of a setting around the paper's, as many for every row: a rate that
was made for one base is not a rate for another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inlay.errors import InlayError, RunError, suggest
from inlay.recipes.folder import Found, look
from inlay.recipes.recipe import TUNED, Column, Dataset, Recipe, Row, listed, trained_specs
from inlay.runs.run import make_run
from inlay.sweeps.values import short

if TYPE_CHECKING:
    from inlay.comparison.plan import Part
    from inlay.engine.host import Host

FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0)
"""What `tune` multiplies the middle of the paper's values by: smaller bases take larger rates."""
TUNABLE = ("lr",)


@dataclass(frozen=True)
class Changes:
    """What somebody wants other than the paper has it."""

    only: Sequence[str] = ()
    """Columns: datasets, or languages."""
    rows: Sequence[str] = ()
    seeds: int | None = None
    max_steps: int | None = None
    train_size: int | float | str | None = None
    grid: Mapping[str, Any] = field(default_factory=dict)
    """Setting -> values, in the place of the paper's."""
    tune: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Setting -> values that a second line of every row tries; without values, some around the paper's own."""

    def settings(self) -> dict[str, Any]:
        """Settings that all runs have."""
        given = {"max_steps": self.max_steps, "train_size": self.train_size}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Chosen:
    """What of a recipe is run on what."""

    recipe: Recipe
    changes: Changes
    rows: tuple[Row, ...]
    """Those of the paper, each followed by its tuned one if there is any."""
    found: tuple[Found, ...]
    missing: tuple[str, ...]
    """Datasets that are not there, and why."""
    unfit: tuple[str, ...] = ()
    """Methods that the base cannot have, and why."""

    @property
    def seeds(self) -> int:
        """Of every setting."""
        return self.changes.seeds or self.recipe.seeds

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Those that can be scored, and are asked for."""
        there = {one.dataset.name: one for one in self.found}
        return tuple(
            column
            for column in self.recipe.columns
            if column.dataset.name in there and (not self.changes.only or column.name in self.changes.only)
            if column.language is None or column.language in there[column.dataset.name].languages
        )

    def row(self, name: str) -> Row:
        """One of the rows that are run."""
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            raise RunError(f"row {name!r} is not run. {suggest(name, [row.name for row in self.rows])}")
        return found

    def part(self, row: Row, dataset: Dataset) -> str:
        """The name of a row's part of the comparison: that of the dataset, and of its group's first row."""
        group = next(rows for rows in self.groups if row in rows)
        return dataset.name if len(self.groups) == 1 else f"{dataset.name}.{group[0].name}"

    @cached_property
    def groups(self) -> list[list[Row]]:
        """Rows that try the same; baselines need the data alone, and are in the first."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if not row.is_baseline:
                tried = [sorted(self.tried(row, one.dataset).items()) for one in self.found]
                found.setdefault(repr(tried), []).append(row)
        first, *others = found.values()
        return [[*first, *(row for row in self.rows if row.is_baseline)], *others]

    def tried(self, row: Row, dataset: Dataset) -> dict[str, Any]:
        """Setting -> values: the paper's, or those in their place."""
        found: dict[str, Any] = dict(self.recipe.tried(row, dataset))
        if self.changes.max_steps is not None and "epochs" in found:  # fewer epochs than the most would be fewer steps
            found["epochs"] = (max(found["epochs"]),)
        found |= {key: (value,) for key, value in self.changes.settings().items()}
        if is_tuned(row):
            found |= {key: tuple(values) or around(found[key]) for key, values in self.changes.tune.items()}
        return found | dict(self.changes.grid)

    def paper_row(self, row: Row) -> Row:
        """The row of the paper that a tuned one goes with; any other is its own."""
        name = row.name.removesuffix(TUNED)
        return next((one for one in self.recipe.rows if one.name in (row.name, name)), row)


def is_tuned(row: Row) -> bool:
    """Whether it was added by `tune`."""
    return row.name.endswith(TUNED)


def around(values: Sequence[float]) -> tuple[float, ...]:
    """As many values for every row: the geometric middle of the paper's own, times each factor, in two digits."""
    middle = math.exp(sum(math.log(value) for value in values) / len(values))
    return tuple(float(f"{middle * factor:.1e}") for factor in FACTORS)


def choose(recipe: Recipe, folder: str, changes: Changes, base: str | None = None) -> Chosen:
    """Find the datasets, and check the names; one error names everything that is wrong.

    Args:
        base: what all of it will be run on, if it is known; of a table with several bases, it decides on the rows.
    """
    problems = _unknown("dataset", changes.only, [column.name for column in recipe.columns])
    problems += _unknown("row", changes.rows, [row.name for row in recipe.rows])
    problems += ["method is no key of the grid: every row has its own (--lines)"] if "method" in changes.grid else []
    rows = _rows(recipe, changes, base)
    problems += [] if problems else _untunable(recipe, changes, rows)
    if rows and all(row.is_baseline for row in rows):
        problems.append(f"{', '.join(row.name for row in rows)} trains nothing; name another row beside it")
    if problems:
        raise RunError(f"{recipe.name}: {'; '.join(problems)}")
    wanted = {c.dataset.name for c in recipe.columns if not changes.only or c.name in changes.only}
    found, missing = look(recipe, folder, [one for one in recipe.datasets if one.name in wanted])
    chosen = Chosen(recipe, changes, tuple(_with_tuned(rows, changes)), tuple(found), tuple(missing))
    if not chosen.columns:
        there = ", ".join(code for one in found for code in one.languages)
        raise RunError(f"{recipe.name}: {', '.join(changes.only)} cannot be scored; {folder} has {there}")
    return chosen


def fitted(host: Host, chosen: Chosen) -> Chosen:
    """Without the methods that the base cannot have (more layers than there are); an error if none is left."""
    from inlay.bank.delta import parse

    reasons: dict[str, str] = {}
    for spec in trained_specs(chosen.rows):
        try:
            parse(spec).params(host.base.sites)
        except InlayError as error:
            reasons[spec] = str(error)
    rows = [
        row.model_copy(update={"methods": tuple(m for m in row.methods if m not in reasons)}) for row in chosen.rows
    ]
    rows = [row for row in rows if row.methods]
    unfit = tuple(f"{spec}: {reason}" for spec, reason in reasons.items())
    if all(row.is_baseline for row in rows):
        raise RunError(f"{chosen.recipe.name}: {'; '.join(unfit)}")
    return replace(chosen, rows=tuple(rows), unfit=unfit)


def read_all(host: Host, chosen: Chosen) -> list[Part]:
    """All parts, their data read; one error names everything that is wrong with any of them."""
    from inlay.comparison.plan import Plan, read_parts
    from inlay.sweeps.grid import FIXED

    parts: list[Part] = []
    problems: dict[str, dict[str, None]] = {}
    for number, rows in enumerate(chosen.groups):
        specs = trained_specs(rows)
        baselines = number == 0 and any(row.is_baseline for row in rows)
        for one in chosen.found:
            tried = chosen.tried(rows[0], one.dataset)
            if one.has_test:
                tried.pop("test_size", None)
            fixed = {key: value[0] for key, value in tried.items() if isinstance(value, tuple) and len(value) == 1}
            own = chosen.recipe.tried(rows[0], one.dataset).keys() & FIXED  # cannot vary, but another value will do
            fixed |= {key: tried[key] for key in own if isinstance(tried.get(key), str | int)}
            grid = {key: value for key, value in tried.items() if key not in fixed}
            name = chosen.part(rows[0], one.dataset)
            try:
                run = make_run(
                    {**fixed, **one.settings, "metric": one.dataset.selection or one.dataset.metric, "name": name}
                )
                parts += read_parts(host, [run], Plan(specs, grid, chosen.seeds, baselines=baselines))
            except InlayError as error:
                told = str(error).partition("; pass --")[0]  # there are no options for columns
                problems.setdefault(told, {})[one.dataset.name] = None
    if problems:
        raise RunError("; ".join(f"{listed(list(names))}: {error}" for error, names in problems.items()))
    return parts


def same_base(base: str, other: str) -> bool:
    """Whether a folder or a name is what the paper has."""
    return os.path.basename(base.rstrip("/")) == os.path.basename(other)


def told(values: Any) -> str:
    """Values of a setting, as people write them; those of a grid are text."""
    return ", ".join(map(short, map(_number, values.split(",")) if isinstance(values, str) else values))


def _number(text: str) -> Any:
    """A number, where a text is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text.strip()


def _rows(recipe: Recipe, changes: Changes, base: str | None) -> list[Row]:
    """Those asked for; else those of the base at hand, or of the recipe's own where it is none of the paper's."""
    if changes.rows:
        return [row for row in recipe.rows if row.name in changes.rows]
    own = next((one for one in recipe.bases if base is not None and same_base(base, one)), recipe.base)
    return [row for row in recipe.rows if recipe.base_of(row) == own]


def _with_tuned(rows: Sequence[Row], changes: Changes) -> list[Row]:
    found = []
    for row in rows:
        found.append(row)
        if changes.tune and not row.is_baseline:
            label = f"{row.label}, {' and '.join(changes.tune)} tuned"
            found.append(row.model_copy(update={"name": f"{row.name}{TUNED}", "label": label}))
    return found


def _untunable(recipe: Recipe, changes: Changes, rows: Sequence[Row]) -> list[str]:
    found = []
    for key, values in changes.tune.items():
        if key not in TUNABLE:
            found.append(f"{key} cannot be tuned, only {', '.join(TUNABLE)}; --grid replaces values of any setting")
        elif key in changes.grid:
            found.append(f"{key} is both tuned and in the grid; give it once")
        elif len(values) == 1 or any(not 0 < value < math.inf for value in values):
            found.append(f"{key}={told(values)} cannot be tuned: expected two positive numbers or more, or none")
        elif not values:
            trained = [(row, one) for row in rows if not row.is_baseline for one in recipe.datasets]
            silent = dict.fromkeys(row.name for row, one in trained if key not in recipe.tried(row, one))
            found += [f"{name} names no {key} to tune around; give values: {key}=1e-4,1e-3" for name in silent]
    return found


def _unknown(kind: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    return [f"unknown {kind} {name!r}. {suggest(name, known)}" for name in given if name not in known]
