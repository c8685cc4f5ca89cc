"""How far the rows of a table are from one of them, with 95 % intervals.

Scores are paired by seed: a seed draws the same rows for all methods. A row's runs are those of the setting with the
best mean over seeds, also where the paper reports its best run, because a best run has no interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.metrics import paired_interval
from inlay.recipes.plan import Chosen
from inlay.recipes.recipe import Row
from inlay.recipes.results import Results

Scores = Mapping[int, float]
"""Seed -> score."""


@dataclass(frozen=True)
class Difference:
    """The mean over seeds, and its interval; one seed has none."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Against:
    """All differences from one row."""

    row: str
    differences: Mapping[str, Mapping[str, Difference]]
    """Row -> column or average -> its difference."""

    @property
    def names(self) -> list[str]:
        """Columns and averages that some row has."""
        return list(dict.fromkeys(name for columns in self.differences.values() for name in columns))


def compare_with(name: str, chosen: Chosen, results: Results) -> Against:
    """Every other row minus this one, as far as runs are done; a share of L-alpha is not compared with a score."""
    first = chosen.row(name)
    alike = [row for row in chosen.rows if (row.shows == "kept") == (first.shows == "kept")]
    scores = {row.name: _scores(row, chosen, results) for row in (first, *alike)}
    base = scores.pop(name)
    differences: dict[str, dict[str, Difference]] = {}
    for row, columns in scores.items():
        pairs = ((column, _difference(columns[column], base[column])) for column in columns if column in base)
        differences[row] = {column: difference for column, difference in pairs if difference is not None}
    return Against(name, differences)


def _scores(row: Row, chosen: Chosen, results: Results) -> dict[str, Scores]:
    """The scores of every column, and of the averages whose columns are all there."""
    by_column = {column.name: results.by_seed(row, column) for column in chosen.columns}
    averages: dict[str, Scores] = {}
    for name, members in chosen.recipe.groups.items():
        inside = [by_column[column] for column in members if column in by_column]
        if len(inside) > 1:
            averages[name] = _average(inside)
    return {name: scores for name, scores in (by_column | averages).items() if scores}


def _average(columns: Sequence[Scores]) -> Scores:
    seeds = set.intersection(*(set(scores) for scores in columns))
    return {seed: statistics.fmean(scores[seed] for scores in columns) for seed in sorted(seeds)}


def _difference(a: Scores, b: Scores) -> Difference | None:
    seeds = sorted(set(a) & set(b))
    if not seeds:
        return None
    mean, low, high = paired_interval([a[seed] for seed in seeds], [b[seed] for seed in seeds])
    return Difference(mean, low, high, len(seeds)) if len(seeds) > 1 else Difference(mean, None, None, 1)
