"""The paper's numbers with one's own beside them.

Averages are over the datasets that were run, the paper's as well, so that they compare; they are not the average that
the paper prints, unless all datasets were run.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inlay.comparison.table import Comparison
from inlay.recipes.plan import Chosen
from inlay.recipes.recipe import Dataset, Recipe, Row
from inlay.sweeps.files import opened


@dataclass(frozen=True)
class Cell:
    """A row of the table on one dataset; all scores times 100."""

    paper: float | None
    ours: float | None
    """None if no run came to its end."""
    std: float | None = None
    """Over seeds, where the mean of them is reported."""
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

    @property
    def paper(self) -> float | None:
        """The mean of the paper's scores on the datasets that were run."""
        return self.row.mean(self.cells)

    @property
    def ours(self) -> float | None:
        """The mean of ours; None if one is missing."""
        found = [cell.ours for cell in self.cells.values() if cell.ours is not None]
        return statistics.fmean(found) if len(found) == len(self.cells) else None

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

    def document(self) -> dict[str, Any]:
        """As JSON."""
        cells = {name: {**vars(cell), "setting": dict(cell.setting)} for name, cell in self.cells.items()}
        own = {"parameters": self.parameters, "share": self.share, "trained in the paper": self.row.trained}
        names = {"row": self.row.name, "label": self.row.label, "methods": list(self.row.methods)}
        return {**names, **own, "average": {"paper": self.paper, "ours": self.ours}, "datasets": cells}


@dataclass(frozen=True)
class Beside:
    """A recipe that was run."""

    recipe: Recipe
    datasets: tuple[Dataset, ...]
    """Those that were run."""
    lines: tuple[Line, ...]
    differences: tuple[str, ...]
    """What is not as the paper has it."""
    comparison: Comparison = field(repr=False)

    def document(self) -> dict[str, Any]:
        """What `inlay recipe run --json` prints."""
        return {
            "recipe": self.recipe.name,
            "paper": self.recipe.paper,
            "table": self.recipe.table,
            "report": self.recipe.report,
            "datasets": [one.name for one in self.datasets],
            "rows": [line.document() for line in self.lines],
            "differences": list(self.differences),
            "notes": list(self.comparison.notes),
            "store": None if self.comparison.store is None else str(self.comparison.store),
        }

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """A line for every row and dataset."""
        with opened(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["row", "dataset", "metric", "paper", "ours", "std", "method", "setting", "parameters"])
            for line in self.lines:
                for dataset in self.datasets:
                    cell = line.cells[dataset.name]
                    setting = " ".join(f"{key}={value}" for key, value in cell.setting.items())
                    scores = [cell.paper, cell.ours, cell.std, cell.method, setting, cell.parameters]
                    what = [line.row.name, dataset.name, dataset.metric]
                    writer.writerow([*what, *("" if value is None else value for value in scores)])


def put_beside(chosen: Chosen, found: Comparison, base: str) -> Beside:
    """What came of a comparison as the table of a recipe."""
    datasets = tuple(one.dataset for one in chosen.found)
    lines = tuple(
        Line(row, {one.name: _cell(chosen, found, row, one, chosen.part(row, one)) for one in datasets})
        for row in chosen.rows
    )
    said = [] if _same(base, chosen.recipe.base) else [f"base: {base} instead of {chosen.recipe.base}"]
    return Beside(chosen.recipe, datasets, lines, (*said, *_scored(chosen, found), *chosen.differences()), found)


def _cell(chosen: Chosen, found: Comparison, row: Row, dataset: Dataset, part: str) -> Cell:
    paper = row.scores.get(dataset.name)
    own = _best(found, row, part) if chosen.recipe.report == "best" else _mean(found, row, part)
    return Cell(paper, None) if own is None else Cell(paper, **own)


def _best(found: Comparison, row: Row, part: str) -> dict[str, Any] | None:
    """The best run of all by validation, whatever its setting and seed, and what it gives on the rows reported."""
    about = next(one for one in found.datasets if one.name == part)
    rows = [
        one
        for one in found.rows
        if one.label.startswith(f"{part} ") and one.setting["method"] in row.methods and one.state == "done"
        if one.value is not None and not math.isnan(one.value)
    ]
    if not rows:
        return None
    best = max(rows, key=lambda one: (one.value or 0.0, -one.position))
    return {
        "ours": 100 * best.metrics[about.split][about.metric],
        "method": best.setting["method"],
        "setting": {**{key: value for key, value in best.setting.items() if key != "method"}, "seed": best.seed},
        "parameters": int(best.parameters["adapter"]),
        "share": float(best.parameters["share_of_base"]),
    }


def _mean(found: Comparison, row: Row, part: str) -> dict[str, Any] | None:
    """The method and setting that is the best by the mean of validation, and its mean on the rows reported."""
    lines = [line for line in found.lines if line.method in row.methods and part in line.cells]
    if not lines:
        return None
    best = max(lines, key=lambda line: line.cells[part].validation)
    cell = best.cells[part]
    return {
        "ours": 100 * cell.mean,
        "std": None if cell.std is None else 100 * cell.std,
        "method": best.method,
        "setting": dict(cell.setting),
        "parameters": cell.parameters,
        "share": cell.share,
    }


def _scored(chosen: Chosen, found: Comparison) -> list[str]:
    """On which rows, where the paper has others."""
    recipe = chosen.recipe
    by_split: dict[str, list[str]] = {}
    first = chosen.rows[0]
    for one in chosen.found:
        about = next(data for data in found.datasets if data.name == chosen.part(first, one.dataset))
        by_split.setdefault(about.split, []).append(one.dataset.name)
    said = []
    if "validation" in by_split:
        said.append(
            f"{', '.join(by_split['validation'])}: scored on validation rows, which also picked the settings; "
            f"the paper on {recipe.measured}"
        )
    if "test" in by_split and recipe.measured != "test rows" and not recipe.dev_is_test:
        said.append(f"{', '.join(by_split['test'])}: scored on your test rows; the paper on {recipe.measured}")
    return said


def _same(base: str, other: str) -> bool:
    return os.path.basename(base.rstrip("/")) == os.path.basename(other)
