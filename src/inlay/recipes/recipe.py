"""A recipe: one table of a paper, with the settings it was made with and the scores it reports.

Settings are those of `inlay.Run`, and a grid lists values to try. What a dataset says goes before what the recipe says,
and what a row says before both: fine-tuning has learning rates of its own in every paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inlay.metrics import LOWER_IS_BETTER

MEAN = "mean"
"""What a paper's average column is, unless the recipe says otherwise."""
Settings = Mapping[str, Any]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataset(_Frozen):
    """One column of the table."""

    name: str
    metric: str
    folders: tuple[str, ...] = ()
    """What it may be called in somebody's folder; its own name by default."""
    mismatched: bool = False
    """Whether it is the second dev set of MNLI."""
    settings: Settings = Field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        """The names to look for, the best first."""
        return self.folders or (self.name,)


class Row(_Frozen):
    """One row of the table."""

    name: str
    label: str
    """As the paper calls it."""
    methods: tuple[str, ...] = Field(min_length=1)
    """Specs; of several, validation chooses one for each dataset."""
    trained: str | None = None
    """Parameters for one task, as the paper prints them."""
    settings: Settings = Field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    scores: Mapping[str, float]
    """By dataset; times 100."""
    average: float | None = None
    """As the paper prints it."""

    def mean(self, datasets: Iterable[str]) -> float | None:
        """Of the paper's scores on these datasets; None if it lacks one."""
        found = [self.scores.get(name) for name in datasets]
        known = [score for score in found if score is not None]
        return statistics.fmean(known) if known and len(known) == len(found) else None


class Recipe(_Frozen):
    """One table of one paper."""

    name: str
    paper: str
    table: str
    title: str
    base: str
    """Which the paper has; any other will do."""
    measured: str
    """What the paper's scores were measured on."""
    seeds: int = Field(ge=1)
    report: Literal["best", "mean"]
    """Of the seeds: the best by validation, or the mean of them all."""
    average: str = MEAN
    """What the paper's average column is: `mean`, or something else, in words."""
    dev_is_test: bool = False
    """Whether the dev rows are kept for the end, and training rows are held out to choose by."""
    notes: tuple[str, ...] = ()
    settings: Settings = Field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    datasets: tuple[Dataset, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        known = {dataset.name for dataset in self.datasets}
        for dataset in self.datasets:
            if dataset.metric in LOWER_IS_BETTER:
                raise ValueError(f"{dataset.name}: {dataset.metric} has no place in a table of scores times 100")
        for row in self.rows:
            other = sorted(set(row.scores) - known)
            if other:
                raise ValueError(f"{row.name} has a score of {other[0]}, which is not among the datasets")
        return self

    def tried(self, row: Row, dataset: Dataset) -> dict[str, tuple[Any, ...]]:
        """Setting -> values that a row tries on a dataset; most have one."""
        layers: list[Mapping[str, tuple[Any, ...]]] = [_one(self.settings), self.grid, _one(dataset.settings)]
        found: dict[str, tuple[Any, ...]] = {}
        for layer in [*layers, _one(row.settings), row.grid]:
            found |= layer
        return found

    @property
    def runs(self) -> int:
        """How many runs the whole table is; what two rows have in common is run once."""
        sizes: dict[tuple[str, str, str], int] = {}
        for dataset in self.datasets:
            for row in self.rows:
                tried = self.tried(row, dataset)
                size = math.prod(len(values) for values in tried.values())
                sizes |= {(dataset.name, spec, repr(sorted(tried.items()))): size for spec in row.methods}
        return self.seeds * sum(sizes.values())

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.model_dump(mode="json"), "runs": self.runs}


def _one(settings: Settings) -> dict[str, tuple[Any, ...]]:
    return {key: (value,) for key, value in settings.items()}
