"""From a recipe and a folder to the runs of a comparison.

Rows that try the same settings on every dataset are a *group*, and a method that two rows of a group have is run once.
A group on a dataset is a part of the comparison; all parts go through one loop and into one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inlay.errors import InlayError, RunError, suggest
from inlay.recipes.folder import Found, look
from inlay.recipes.recipe import Dataset, Recipe, Row
from inlay.runs.run import make_run
from inlay.sweeps.values import shown

if TYPE_CHECKING:
    from inlay.comparison.plan import Part
    from inlay.engine.host import Host


@dataclass(frozen=True)
class Changes:
    """What somebody wants other than the paper has it."""

    only: Sequence[str] = ()
    """Datasets."""
    rows: Sequence[str] = ()
    seeds: int | None = None
    max_steps: int | None = None
    train_size: int | float | str | None = None
    grid: Mapping[str, Any] = field(default_factory=dict)
    """Setting -> values, in the place of the paper's."""

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
    found: tuple[Found, ...]
    missing: tuple[str, ...]
    """Datasets that are not there, and why."""

    @property
    def seeds(self) -> int:
        """Of every setting."""
        return self.changes.seeds or self.recipe.seeds

    def part(self, row: Row, dataset: Dataset) -> str:
        """The name of a row's part of the comparison: that of the dataset, and of its group's first row."""
        groups = self.groups()
        group = next(i for i, rows in enumerate(groups) if row in rows)
        return dataset.name if len(groups) == 1 else f"{dataset.name}.{groups[group][0].name}"

    def groups(self) -> list[list[Row]]:
        """Rows that try the same."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            tried = [sorted(self.tried(row, one.dataset).items()) for one in self.found]
            found.setdefault(repr(tried), []).append(row)
        return list(found.values())

    def tried(self, row: Row, dataset: Dataset) -> dict[str, Any]:
        """Setting -> values: the paper's, or those in their place."""
        found: dict[str, Any] = dict(self.recipe.tried(row, dataset))
        if self.changes.max_steps is not None and "epochs" in found:  # fewer epochs than the most would be fewer steps
            found["epochs"] = (max(found["epochs"]),)
        found |= {key: (value,) for key, value in self.changes.settings().items()}
        return found | dict(self.changes.grid)

    def differences(self) -> list[str]:
        """What is not as the paper has it, but for the base and the rows that are scored."""
        recipe, changes = self.recipe, self.changes
        said = [f"left out: {text}" for text in self.missing]
        not_asked = [one.name for one in recipe.datasets if changes.only and one.name not in _names(self.found)]
        not_asked = [name for name in not_asked if not any(text.startswith(f"{name}: ") for text in self.missing)]
        said += [f"left out, as requested: {', '.join(not_asked)}"] if not_asked else []
        other = [row.label for row in recipe.rows if row not in self.rows]
        said += [f"rows left out, as requested: {', '.join(other)}"] if other else []
        if self.seeds != recipe.seeds:
            said.append(f"seeds: {self.seeds} instead of {recipe.seeds}")
        given = {**{key: (value,) for key, value in changes.settings().items()}, **changes.grid}
        for key, values in given.items():
            before = self._before(key)
            if before != _told(values):
                said.append(f"{key}: {_told(values)} instead of {before or self._usual(key)}")
        return said

    def _before(self, key: str) -> str:
        tried = [self.recipe.tried(row, one.dataset) for row in self.rows for one in self.found]
        return " or ".join(dict.fromkeys(_told(one[key]) for one in tried if key in one))

    def _usual(self, key: str) -> str:
        return {"max_steps": "all steps", "train_size": "all rows"}.get(key, "Inlay's default")


def choose(recipe: Recipe, folder: str, changes: Changes) -> Chosen:
    """Find the datasets, and check the names; one error names everything that is wrong."""
    problems = _unknown("dataset", changes.only, [one.name for one in recipe.datasets])
    problems += _unknown("row", changes.rows, [row.name for row in recipe.rows])
    if problems:
        raise RunError(f"{recipe.name}: {'; '.join(problems)}")
    datasets = [one for one in recipe.datasets if not changes.only or one.name in changes.only]
    found, missing = look(recipe, folder, datasets)
    rows = tuple(row for row in recipe.rows if not changes.rows or row.name in changes.rows)
    return Chosen(recipe, changes, rows, tuple(found), tuple(missing))


def read_all(host: Host, chosen: Chosen) -> list[Part]:
    """All parts, their data read; one error names everything that is wrong with any of them."""
    from inlay.comparison.plan import Plan, read_parts

    parts: list[Part] = []
    problems: list[str] = []
    for rows in chosen.groups():
        specs = list(dict.fromkeys(spec for row in rows for spec in row.methods))
        for one in chosen.found:
            tried = chosen.tried(rows[0], one.dataset)
            fixed = {key: value[0] for key, value in tried.items() if isinstance(value, tuple) and len(value) == 1}
            grid = {key: value for key, value in tried.items() if key not in fixed}
            name = chosen.part(rows[0], one.dataset)
            try:
                run = make_run({**fixed, **one.settings, "metric": one.dataset.metric, "name": name})
                parts += read_parts(host, [run], Plan(specs, grid, chosen.seeds, baselines=False))
            except InlayError as error:
                problems.append(str(error))
    if problems:
        raise RunError("; ".join(dict.fromkeys(problems)))
    return parts


def _names(found: Sequence[Found]) -> set[str]:
    return {one.dataset.name for one in found}


def _told(values: Any) -> str:
    return values.replace(",", ", ") if isinstance(values, str) else ", ".join(shown(value) for value in values)


def _unknown(kind: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    return [f"unknown {kind} {name!r}. {suggest(name, known)}" for name in given if name not in known]
