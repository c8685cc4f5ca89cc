"""From a recipe and a folder to the runs of a comparison.

Rows that try the same settings on every dataset are a *group*, and a method that two rows of a group have is run once.
A group on a dataset is a part of the comparison; all parts go through one loop and into one file.

`tune` adds to every row another that tries values of a setting around the paper's, as many for every row: a rate
chosen for one base may not suit another.
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
from inlay.sweeps.values import is_number, short

if TYPE_CHECKING:
    from inlay.comparison.plan import Part
    from inlay.engine.host import Host

FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0)
"""`tune` multiplies the middle of the paper's values by these: smaller bases take larger rates."""
TUNABLE = ("lr",)


@dataclass(frozen=True)
class Changes:
    """What is to differ from the paper."""

    only: Sequence[str] = ()
    """Columns: datasets, or languages."""
    rows: Sequence[str] = ()
    seeds: int | None = None
    max_steps: int | None = None
    train_size: int | float | str | None = None
    grid: Mapping[str, Any] = field(default_factory=dict)
    """Setting -> values, instead of the paper's."""
    tune: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Setting -> values that a second line of every row tries; without values, some around the paper's own."""

    def settings(self) -> dict[str, Any]:
        """Settings that all runs have."""
        settings = {"max_steps": self.max_steps, "train_size": self.train_size}
        return {key: value for key, value in settings.items() if value is not None}


@dataclass(frozen=True)
class Chosen:
    """The rows of a recipe to run, and the datasets to run them on."""

    recipe: Recipe
    changes: Changes
    rows: tuple[Row, ...]
    """Those of the paper, each followed by its tuned row if there is one."""
    found: tuple[Found, ...]
    missing: tuple[str, ...]
    """Datasets that are not there, and why."""
    unfit: tuple[str, ...] = ()
    """Methods that do not fit the base, and why."""

    @property
    def seeds(self) -> int:
        """Runs of every setting."""
        return self.changes.seeds or self.recipe.seeds

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Columns that can be scored, and are wanted."""
        there = {found.dataset.name: found for found in self.found}
        return tuple(
            column
            for column in self.recipe.columns
            if column.dataset.name in there and (not self.changes.only or column.name in self.changes.only)
            if column.language is None or column.language in there[column.dataset.name].languages
        )

    def row(self, name: str) -> Row:
        """One of the rows that are run."""
        chosen = next((row for row in self.rows if row.name == name), None)
        if chosen is None:
            raise RunError(f"row {name!r} is not run. {suggest(name, [row.name for row in self.rows])}")
        return chosen

    def part(self, row: Row, dataset: Dataset) -> str:
        """The name of a row's part of the comparison: that of the dataset, and of its group's first row."""
        group = next(rows for rows in self.groups if row in rows)
        return dataset.name if len(self.groups) == 1 else f"{dataset.name}.{group[0].name}"

    @cached_property
    def groups(self) -> list[list[Row]]:
        """Rows that try the same settings; baselines need only the data, and are in the first."""
        rows_of_settings: dict[str, list[Row]] = {}
        for row in self.rows:
            if not row.is_baseline:
                tried = [sorted(self.tried(row, found.dataset).items()) for found in self.found]
                rows_of_settings.setdefault(repr(tried), []).append(row)
        first, *others = rows_of_settings.values()
        return [[*first, *(row for row in self.rows if row.is_baseline)], *others]

    def tried(self, row: Row, dataset: Dataset) -> dict[str, Any]:
        """Setting -> values: the paper's, or those that replace them."""
        settings: dict[str, Any] = dict(self.recipe.tried(row, dataset))
        if self.changes.max_steps is not None and "epochs" in settings:  # fewer epochs might be fewer steps
            settings["epochs"] = (max(settings["epochs"]),)
        settings |= {key: (value,) for key, value in self.changes.settings().items()}
        if is_tuned(row):
            settings |= {key: tuple(values) or around(settings[key]) for key, values in self.changes.tune.items()}
        return settings | dict(self.changes.grid)

    def paper_row(self, row: Row) -> Row:
        """The row of the paper that a tuned row belongs to; for any other row, the row itself."""
        name = row.name.removesuffix(TUNED)
        return next((r for r in self.recipe.rows if r.name in (row.name, name)), row)


def is_tuned(row: Row) -> bool:
    """Whether `tune` has added it."""
    return row.name.endswith(TUNED)


def around(values: Sequence[float]) -> tuple[float, ...]:
    """The geometric mean of the paper's values, times each factor, in two digits."""
    middle = math.exp(sum(math.log(value) for value in values) / len(values))
    return tuple(float(f"{middle * factor:.1e}") for factor in FACTORS)


def choose(recipe: Recipe, folder: str, changes: Changes, base: str | None = None) -> Chosen:
    """Find the datasets, and check the names; one error names everything that is wrong.

    Args:
        base: what all rows will run on, if it is known; in a table with several bases it decides which rows run.
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
    found, missing = look(recipe, folder, [d for d in recipe.datasets if d.name in wanted])
    chosen = Chosen(recipe, changes, tuple(_with_tuned(rows, changes)), tuple(found), tuple(missing))
    if not chosen.columns:
        there = ", ".join(code for d in found for code in d.languages)
        raise RunError(f"{recipe.name}: {', '.join(changes.only)} cannot be scored; {folder} has {there}")
    return chosen


def fitted(host: Host, chosen: Chosen) -> Chosen:
    """Without the methods that do not fit the base (more layers than it has); an error if none is left."""
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
    """All parts, their data read; one error names everything that is wrong with them."""
    from inlay.comparison.plan import Plan, read_parts
    from inlay.sweeps.grid import FIXED

    parts: list[Part] = []
    problems: dict[str, dict[str, None]] = {}
    for number, rows in enumerate(chosen.groups):
        specs = trained_specs(rows)
        baselines = number == 0 and any(row.is_baseline for row in rows)
        for found in chosen.found:
            tried = chosen.tried(rows[0], found.dataset)
            if found.has_test:
                tried.pop("test_size", None)
            fixed = {key: value[0] for key, value in tried.items() if isinstance(value, tuple) and len(value) == 1}
            given = chosen.recipe.tried(rows[0], found.dataset).keys()
            fixed |= {key: tried[key] for key in given & FIXED if isinstance(tried.get(key), str | int)}
            grid = {key: value for key, value in tried.items() if key not in fixed}
            name = chosen.part(rows[0], found.dataset)
            try:
                run = make_run(
                    {**fixed, **found.settings, "metric": found.dataset.selection or found.dataset.metric, "name": name}
                )
                parts += read_parts(host, [run], Plan(specs, grid, chosen.seeds, baselines=baselines))
            except InlayError as error:
                problem = str(error).partition("; pass --")[0]  # there are no options for columns
                problems.setdefault(problem, {})[found.dataset.name] = None
    if problems:
        raise RunError("; ".join(f"{listed(list(names))}: {error}" for error, names in problems.items()))
    return parts


def same_base(base: str, other: str) -> bool:
    """Whether a folder or a name is the paper's base."""
    return os.path.basename(base.rstrip("/")) == os.path.basename(other)


def shown_values(values: Any) -> str:
    """Values of a setting as people write them; a grid has them as text."""
    return ", ".join(map(short, map(_number, values.split(",")) if isinstance(values, str) else values))


def _number(text: str) -> Any:
    """A number, where a text is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text.strip()


def _rows(recipe: Recipe, changes: Changes, base: str | None) -> list[Row]:
    """The rows wanted; else those of this base, or of the recipe's own if the paper does not have this one."""
    if changes.rows:
        return [row for row in recipe.rows if row.name in changes.rows]
    wanted = next((b for b in recipe.bases if base is not None and same_base(base, b)), recipe.base)
    return [row for row in recipe.rows if recipe.base_of(row) == wanted]


def _with_tuned(rows: Sequence[Row], changes: Changes) -> list[Row]:
    with_tuned = []
    for row in rows:
        with_tuned.append(row)
        if changes.tune and not row.is_baseline:
            label = f"{row.label}, {' and '.join(changes.tune)} tuned"
            with_tuned.append(row.model_copy(update={"name": f"{row.name}{TUNED}", "label": label}))
    return with_tuned


def _untunable(recipe: Recipe, changes: Changes, rows: Sequence[Row]) -> list[str]:
    problems = []
    for key, values in changes.tune.items():
        if key not in TUNABLE:
            problems.append(f"{key} cannot be tuned, only {', '.join(TUNABLE)}; --grid replaces values of any setting")
        elif key in changes.grid:
            problems.append(f"{key} is both tuned and in the grid; give it once")
        elif len(values) == 1 or (values and not _are_positive(values)):
            expected = "expected two positive numbers or more, or none"
            problems.append(f"{key}={shown_values(values)} cannot be tuned: {expected}")
        elif not values:
            trained = [(row, dataset) for row in rows if not row.is_baseline for dataset in recipe.datasets]
            silent = dict.fromkeys(
                row.name for row, d in trained if not _are_positive(recipe.tried(row, d).get(key, ()))
            )
            problems += [f"{name} names no {key} to tune around; give values: {key}=1e-4,1e-3" for name in silent]
    return problems


def _are_positive(values: Sequence[Any]) -> bool:
    return bool(values) and all(is_number(value) and 0 < value < math.inf for value in values)


def _unknown(kind: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    return [f"unknown {kind} {name!r}. {suggest(name, known)}" for name in names if name not in known]
