"""The paper's numbers with your own beside them.

Averages are over the columns that were run, the paper's as well, so that they compare; they are not the average that
the paper prints, unless all columns were run.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from inlay.comparison.ranking import total_parameters
from inlay.comparison.runner import ComparisonRunner
from inlay.comparison.table import Comparison
from inlay.recipes.against import Against, compare_with
from inlay.recipes.deviations import deviations
from inlay.recipes.plan import Chosen
from inlay.recipes.recipe import Column, Recipe, Row
from inlay.recipes.results import Result, Results
from inlay.sweeps.exports import write_rows


@dataclass(frozen=True)
class Cell:
    """A row of the table in one column; all scores times 100."""

    paper: float | None
    paper_spread: float | None
    """What the paper prints after ±."""
    ours: float | None
    """None if no run is done."""
    spread: float | None = None
    """Over seeds, if their mean is reported; `Recipe.spread` says which."""
    method: str | None = None
    """The spec that validation chose."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    """The values of the grid that it chose."""
    parameters: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    row: Row
    cells: Mapping[str, Cell]
    recipe: Recipe = field(repr=False)

    @property
    def averages(self) -> dict[str, tuple[float | None, float | None]]:
        """Average -> the paper's and ours, over the columns that were run; None if one of those is missing."""
        averages = {}
        for name, columns in self.recipe.groups.items():
            columns_run = [column for column in columns if column in self.cells]
            if columns_run:
                ours = [cell.ours for cell in (self.cells[column] for column in columns_run) if cell.ours is not None]
                paper = self.row.mean(columns_run)
                if paper is None and len(columns_run) == len(columns):  # the paper does not print every score
                    paper = self.row.printed(name)
                averages[name] = (paper, statistics.fmean(ours) if len(ours) == len(columns_run) else None)
        return averages

    @property
    def parameters(self) -> int | None:
        """How many are trained for one task, on average."""
        counts = [cell.parameters for cell in self.cells.values() if cell.parameters is not None]
        return round(statistics.fmean(counts)) if counts else None

    @property
    def share(self) -> float | None:
        """The same as a share of the base."""
        shares = [cell.share for cell in self.cells.values() if cell.share is not None]
        return statistics.fmean(shares) if shares else None

    @property
    def total(self) -> float | None:
        """What all tasks of the table need, in bases: one base and a share for each, or a base for each."""
        if self.share is None:
            return None
        replaces = self.share >= 1 and all(spec.partition(":")[0] == "finetune" for spec in self.row.methods)
        return total_parameters(self.share, len(self.recipe.datasets), replaces)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        cells = {name: {**vars(cell), "setting": dict(cell.setting)} for name, cell in self.cells.items()}
        sizes = {"parameters": self.parameters, "share": self.share, "trained in the paper": self.row.trained}
        sizes |= {"total": self.total, "total in the paper": self.row.total}
        names = {"row": self.row.name, "label": self.row.label, "methods": list(self.row.methods)}
        averages = {name: {"paper": paper, "ours": ours} for name, (paper, ours) in self.averages.items()}
        return {**names, **sizes, "averages": averages, "columns": cells}


@dataclass(frozen=True)
class TableBesidePaper:
    """A recipe that was run."""

    recipe: Recipe
    columns: tuple[Column, ...]
    """Columns that were run."""
    lines: tuple[Line, ...]
    differences: tuple[str, ...]
    """What differs from the paper."""
    notes: tuple[str, ...]
    """What could not be run or scored, and why."""
    comparison: Comparison = field(repr=False)
    against: Against | None = None
    """How far its rows are from one of them, if requested."""

    def document(self) -> dict[str, Any]:
        """What `inlay recipe run --json` prints."""
        return {
            "recipe": self.recipe.name,
            "paper": self.recipe.paper,
            "table": self.recipe.table,
            "report": self.recipe.report,
            "spread": self.recipe.spread,
            "columns": [column.name for column in self.columns],
            "rows": [line.document() for line in self.lines],
            "differences": list(self.differences),
            "against": None if self.against is None else asdict(self.against),
            "notes": list(self.notes),
            "about": list(self.recipe.notes),
            "store": None if self.comparison.store is None else str(self.comparison.store),
        }

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file with a line for every row and column."""
        spread = self.recipe.spread
        names = ["row", "column", "metric", "paper", f"paper {spread}", "ours", spread, "method", "setting"]
        rows: list[list[Any]] = [[*names, "parameters"]]
        for line in self.lines:
            for column in self.columns:
                cell = line.cells[column.name]
                setting = " ".join(f"{key}={value}" for key, value in cell.setting.items())
                scores = [cell.paper, cell.paper_spread, cell.ours, cell.spread, cell.method, setting]
                rows.append([line.row.name, column.name, column.metric, *scores, cell.parameters])
        write_rows(path, rows)


def put_beside_paper(
    chosen: Chosen, runner: ComparisonRunner, comparison: Comparison, against: str | None = None
) -> TableBesidePaper:
    """The result of a comparison as the table of a recipe.

    Args:
        against: a row; how far the others are from it is shown too.
    """
    results, recipe = Results(chosen, runner), chosen.recipe
    lines = []
    for row in chosen.rows:
        cells = {c.name: _cell(row, c.name, results.of(row, c), recipe.spread) for c in chosen.columns}
        lines.append(Line(row, cells, recipe))
    compared = None if against is None else compare_with(against, chosen, results)
    differences, notes = tuple(deviations(chosen, runner)), (*comparison.notes, *results.notes)
    return TableBesidePaper(recipe, chosen.columns, tuple(lines), differences, notes, comparison, compared)


def _cell(row: Row, column: str, result: Result | None, spread: str) -> Cell:
    paper, paper_spread = row.scores.get(column), row.spreads.get(column)
    if result is None:
        return Cell(paper, paper_spread, None)
    scores = (paper, paper_spread, result.mean, result.spread(spread))
    return Cell(*scores, result.method, result.setting, result.parameters, result.share)
