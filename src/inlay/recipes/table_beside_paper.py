"""The paper's numbers with one's own beside them.

Averages are over the columns that were run, the paper's as well, so that they compare; they are not the average that
the paper prints, unless all columns were run.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
    """None if no run came to its end."""
    spread: float | None = None
    """Over seeds, where the mean of them is reported: what `Recipe.spread` says."""
    method: str | None = None
    """The spec that validation chose."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    """What of the grid it chose."""
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
        found = {}
        for name, columns in self.recipe.groups.items():
            own = [column for column in columns if column in self.cells]
            if own:
                ours = [cell.ours for cell in (self.cells[column] for column in own) if cell.ours is not None]
                paper = self.row.mean(own)
                if paper is None and len(own) == len(columns):  # of single scores the paper prints some, or none
                    paper = self.row.printed(name)
                found[name] = (paper, statistics.fmean(ours) if len(ours) == len(own) else None)
        return found

    @property
    def parameters(self) -> int | None:
        """Trained for one task, on average."""
        found = [cell.parameters for cell in self.cells.values() if cell.parameters is not None]
        return round(statistics.fmean(found)) if found else None

    @property
    def share(self) -> float | None:
        """Of the base."""
        found = [cell.share for cell in self.cells.values() if cell.share is not None]
        return statistics.fmean(found) if found else None

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
        own = {"parameters": self.parameters, "share": self.share, "trained in the paper": self.row.trained}
        own |= {"total": self.total, "total in the paper": self.row.total}
        names = {"row": self.row.name, "label": self.row.label, "methods": list(self.row.methods)}
        averages = {name: {"paper": paper, "ours": ours} for name, (paper, ours) in self.averages.items()}
        return {**names, **own, "averages": averages, "columns": cells}


@dataclass(frozen=True)
class TableBesidePaper:
    """A recipe that was run."""

    recipe: Recipe
    columns: tuple[Column, ...]
    """Those that were run."""
    lines: tuple[Line, ...]
    differences: tuple[str, ...]
    """What is not as the paper has it."""
    notes: tuple[str, ...]
    """What could not be run or scored, and why."""
    comparison: Comparison = field(repr=False)
    against: Against | None = None
    """How far its rows are from one of them, if somebody asked."""

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
        """A line for every row and column."""
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
    chosen: Chosen, runner: ComparisonRunner, found: Comparison, against: str | None = None
) -> TableBesidePaper:
    """What came of a comparison as the table of a recipe.

    Args:
        against: a row; how far the others are from it is shown too.
    """
    results, recipe = Results(chosen, runner), chosen.recipe
    lines = []
    for row in chosen.rows:
        cells = {one.name: _cell(row, one.name, results.of(row, one), recipe.spread) for one in chosen.columns}
        lines.append(Line(row, cells, recipe))
    compared = None if against is None else compare_with(against, chosen, results)
    said, notes = tuple(deviations(chosen, runner)), (*found.notes, *results.notes)
    return TableBesidePaper(recipe, chosen.columns, tuple(lines), said, notes, found, compared)


def _cell(row: Row, column: str, own: Result | None, spread: str) -> Cell:
    paper, beside = row.scores.get(column), row.spreads.get(column)
    if own is None:
        return Cell(paper, beside, None)
    scores = Cell(paper, beside, own.mean, own.spread(spread), own.method, own.setting)
    return replace(scores, parameters=own.parameters, share=own.share)
