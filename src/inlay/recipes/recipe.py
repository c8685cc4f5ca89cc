"""A recipe: one table of a paper, with the settings it was made with and the scores it reports.

Settings are those of `inlay.Run`, and a grid lists values to try. Settings of a dataset replace the recipe's, and those
of a row replace both: fine-tuning has its own learning rates in every paper.

A dataset is a column. One with `languages` is trained on once and scored in each language: then these are the columns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inlay.metrics import LOWER_IS_BETTER

MEAN = "mean"
"""What a paper's average column is by default."""
AVERAGE = "average"
"""What the average over all columns is called."""
BASELINES = ("majority", "tf-idf")
"""What a row can have instead of methods: nothing is trained, so they have no settings."""
SILENT = "not said"
"""The value of a setting in `protocol` that the paper does not give."""
TUNED = "-tuned"
"""The ending of the name of a row that `tune` has added."""
Settings = Mapping[str, Any]
Shows = Literal["score", "kept", "mean of evaluations", "best of evaluations"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataset(_Frozen):
    """What is trained on: one column of the table, or one for every language."""

    name: str
    metric: str
    """The metric that is reported."""
    selection: str | None = None
    """The metric that picks checkpoints and settings on validation rows, if it is another one."""
    folders: tuple[str, ...] = ()
    """Names that it may have in a folder; its own by default."""
    mismatched: bool = False
    """Whether it is the second dev set of MNLI."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """text, pair, label -> the columns of the published file, taken where a file has them."""
    encoding: str | None = None
    """Of the published file, taken where a file is not UTF-8."""
    languages: tuple[str, ...] = ()
    """Codes of the languages that it is scored in; training and validation are in `source`."""
    source: str = "en"
    settings: Settings = Field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        """The names to look for, the best first."""
        return self.folders or (self.name,)


class Column(NamedTuple):
    """One column of the table."""

    name: str
    metric: str
    dataset: Dataset
    language: str | None = None


class Row(_Frozen):
    """One row of the table."""

    name: str
    label: str
    """As the paper calls it."""
    methods: tuple[str, ...] = Field(min_length=1)
    """Specs, of which validation chooses one for each dataset; or a baseline."""
    base: str | None = None
    """If the table has several."""
    trained: str | None = None
    """Parameters for one task, as the paper prints them."""
    total: str | None = None
    """Parameters for all tasks, in bases, as the paper prints them."""
    settings: Settings = Field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    shows: Shows = "score"
    """What its numbers are, if not the scores of its columns: the share of L-alpha that L0 keeps, or evaluations."""
    scores: Mapping[str, float]
    """Column -> score times 100. Scores that the paper does not print are left out."""
    spreads: Mapping[str, float] = Field(default_factory=dict)
    """What the paper prints after ±."""
    average: float | None = None
    """As the paper prints it."""
    averages: Mapping[str, float] = Field(default_factory=dict)
    """By name, if the table has several."""

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is trained."""
        return self.methods[0] in BASELINES

    def mean(self, columns: Iterable[str]) -> float | None:
        """The mean of the paper's scores in these columns; None if one is missing."""
        scores = [self.scores.get(name) for name in columns]
        known = [score for score in scores if score is not None]
        return statistics.fmean(known) if known and len(known) == len(scores) else None

    def printed(self, average: str) -> float | None:
        """An average as the paper prints it."""
        return self.average if average == AVERAGE else self.averages.get(average)


class Recipe(_Frozen):
    """One table of one paper."""

    name: str
    paper: str
    table: str
    title: str
    base: str
    """The paper's; any other will do. If rows have their own, other bases run the rows of this one."""
    measured: str
    """What the paper's scores were measured on."""
    seeds: int = Field(ge=1)
    report: Literal["best", "mean"]
    """The best seed by validation, or the mean of all."""
    spread: Literal["std", "sem"] = "std"
    """What follows ±: the standard deviation over seeds, or the standard error of their mean."""
    average: str = MEAN
    """What the paper's average column is: `mean`, or a description."""
    averages: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Name of an average -> its columns; by default there is one average, over all columns."""
    dev_is_test: bool = False
    """Whether the dev rows are kept for the end, and training rows are held out to choose by."""
    protocol: Settings = Field(default_factory=dict)
    """What the paper says about things that a run may do in another way; `not said` where it says nothing."""
    notes: tuple[str, ...] = ()
    settings: Settings = Field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    datasets: tuple[Dataset, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        known = {column.name for column in self.columns}
        for dataset in self.datasets:
            for metric in LOWER_IS_BETTER.intersection((dataset.metric, dataset.selection)):
                raise ValueError(f"{dataset.name}: {metric} has no place in a table of scores times 100")
            if dataset.languages and (len(self.datasets) > 1 or self.dev_is_test):
                raise ValueError(f"{dataset.name}: a dataset with languages is the only one, and has no dev_is_test")
        for row in self.rows:
            other = sorted({*row.scores, *row.spreads} - known)
            if other:
                raise ValueError(f"{row.name} has a score of {other[0]}, which is not among the columns")
            if row.name.endswith(TUNED):
                raise ValueError(f"{row.name}: names that end in {TUNED} are those of tuned rows")
            if row.is_baseline and (len(row.methods) > 1 or row.settings or row.grid):
                raise ValueError(f"{row.name}: a baseline is the only method of its row, and has no settings")
            strange = sorted(set(row.averages) - set(self.averages))
            if strange:
                raise ValueError(f"{row.name} has an average {strange[0]}, which is not in [averages]")
        for name, columns in self.averages.items():
            if strange := sorted(set(columns) - known):
                raise ValueError(f"the average {name} is over {strange[0]}, which is not among the columns")
        return self

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, in the paper's order."""
        return tuple(
            Column(name, dataset.metric, dataset, name if dataset.languages else None)
            for dataset in self.datasets
            for name in dataset.languages or (dataset.name,)
        )

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Average -> the columns it is over."""
        return self.averages or {AVERAGE: tuple(column.name for column in self.columns)}

    @property
    def bases(self) -> tuple[str, ...]:
        """All bases of the table."""
        return tuple(dict.fromkeys(self.base_of(row) for row in self.rows))

    def base_of(self, row: Row) -> str:
        """The paper's base of a row."""
        return row.base or self.base

    @property
    def digits(self) -> int:
        """How many the paper prints."""
        return max((decimals(score) for row in self.rows for score in row.scores.values()), default=1)

    def tried(self, row: Row, dataset: Dataset) -> dict[str, tuple[Any, ...]]:
        """Setting -> the values that a row tries on a dataset, most often one."""
        of_dataset = _as_values(dataset.settings)
        return {**_as_values(self.settings), **self.grid, **of_dataset, **_as_values(row.settings), **row.grid}

    @property
    def runs(self) -> int:
        """How many runs the whole table needs; what two rows have in common is run once."""
        sizes: dict[tuple[str, str, str, str], int] = {}
        for dataset in self.datasets:
            for row in self.rows:
                tried = self.tried(row, dataset)
                size = math.prod(len(values) for values in tried.values())
                where = (self.base_of(row), dataset.name)
                sizes |= {(*where, spec, repr(sorted(tried.items()))): size for spec in trained_specs([row])}
        return self.seeds * sum(sizes.values())

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.model_dump(mode="json"), "runs": self.runs}


def trained_specs(rows: Iterable[Row]) -> list[str]:
    """The methods of rows, each once, without baselines."""
    return list(dict.fromkeys(spec for row in rows for spec in row.methods if spec not in BASELINES))


def decimals(value: float) -> int:
    """How many digits follow the point: one at least."""
    return max(1, len(repr(value).partition(".")[2]))


def listed(names: Sequence[str]) -> str:
    """Names with commas, at most the first twelve."""
    rest = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + rest


def _as_values(settings: Settings) -> dict[str, tuple[Any, ...]]:
    return {key: (value,) for key, value in settings.items()}
