"""The result of a comparison: a line for every method, with its cost, its quality, and whether the best is better."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inlay.comparison import significance
from inlay.comparison.exports import html_table, write_csv, write_latex, write_plot
from inlay.library.adapter import Adapter
from inlay.metrics import sample_std
from inlay.sweeps.store import Row


@dataclass(frozen=True)
class Dataset:
    """A dataset of a comparison."""

    name: str
    data: str
    task: str
    metric: str
    split: str
    """The split that is reported: `test`, or `validation`, which also chose the settings."""
    rows: Mapping[str, int]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "rows": dict(self.rows)}


@dataclass(frozen=True)
class Cell:
    """A method on a dataset, in the setting that validation chose."""

    values: Mapping[int, float]
    """seed -> the metric on the split that is reported."""
    validation: float
    """Mean over seeds."""
    setting: Mapping[str, Any]
    """The same for all seeds; for a baseline, which is tuned for every seed, seed -> setting."""
    seconds: float
    """Mean of the runs."""
    parameters: int = 0
    share: float = 0.0
    """Of the base's parameters."""
    bytes: int | None = None
    """Size of the best seed's adapter, with its head."""
    run: str = ""
    """The id of the best seed's run."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample; None for a single seed."""
        return sample_std([*self.values.values()])

    def document(self) -> dict[str, Any]:
        """As JSON."""
        values = {str(seed): value for seed, value in self.values.items()}
        return {**vars(self), "values": values, "setting": dict(self.setting), "mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class Line:
    """A method, or a baseline, on all datasets."""

    method: str
    family: str
    is_baseline: bool
    cells: Mapping[str, Cell]
    """Dataset -> cell; a missing one could not be run there."""
    total: float | None
    """Parameters for all tasks, in bases; None for a baseline."""
    average: float | None = None
    """Mean over datasets; None if one is missing."""
    average_std: float | None = None
    """Standard deviation of the average over seeds."""
    difference: float | None = None
    """To the best, as the mean over the pairs that both have; below 0 is worse."""
    pairs: int = 0
    p: float | None = None
    """Corrected; None for the best itself, and if there are too few pairs."""
    is_best: bool = False

    @property
    def parameters(self) -> int:
        """Trained for a task, without its head; the mean if datasets chose different sizes."""
        return round(statistics.fmean(cell.parameters for cell in self.cells.values())) if self.cells else 0

    @property
    def share(self) -> float:
        """The parameters as a share of the base's."""
        return statistics.fmean(cell.share for cell in self.cells.values()) if self.cells else 0.0

    @property
    def seconds(self) -> float:
        """Mean seconds of a run."""
        return statistics.fmean(cell.seconds for cell in self.cells.values()) if self.cells else 0.0

    @property
    def bytes(self) -> int | None:
        """Mean size of an adapter."""
        known = [cell.bytes for cell in self.cells.values() if cell.bytes is not None]
        return round(statistics.fmean(known)) if known and not self.is_baseline else None

    @property
    def verdict(self) -> str:
        """`best`, `worse`, `not distinguishable` or `cannot tell`."""
        if self.is_best:
            return "best"
        if self.p is None:
            return "cannot tell"
        return "worse" if self.p <= significance.LEVEL else "not distinguishable"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        names = "method family is_baseline parameters share total bytes seconds average average_std difference pairs p"
        values = {name: getattr(self, name) for name in [*names.split(), "verdict"]}
        if self.is_baseline:
            values |= {"parameters": None, "share": None}
        return {**values, "datasets": {name: cell.document() for name, cell in self.cells.items()}}


@dataclass(frozen=True)
class Comparison:
    """Methods on equal terms."""

    name: str
    datasets: tuple[Dataset, ...]
    lines: tuple[Line, ...]
    """The best first; those without a score on some dataset last."""
    tasks: int
    """For how many tasks parameters are added up."""
    seeds: tuple[int, ...]
    settings: int
    """How many were tried for every method."""
    says: tuple[str, ...] = ()
    """The conclusions."""
    notes: tuple[str, ...] = ()
    """What could not be run, and why."""
    rows: tuple[Row, ...] = field(default=(), repr=False)
    """All runs; their labels begin with the dataset's name."""
    store: Path | None = None
    _load: Callable[[str], Adapter | None] = field(default=lambda id: None, repr=False)

    @property
    def metric(self) -> str:
        """The metric, if it is the same for all datasets; else `score`."""
        names = {dataset.metric for dataset in self.datasets}
        return names.pop() if len(names) == 1 else "score"

    @property
    def best(self) -> Line | None:
        """The best of those that were run on every dataset; None if there is none."""
        return next((line for line in self.lines if line.is_best), None)

    def adapter(self, method: str, dataset: str) -> Adapter | None:
        """The adapter of a method's best seed on a dataset, if it was kept."""
        line = next((line for line in self.lines if line.method == method), None)
        return None if line is None or dataset not in line.cells else self._load(line.cells[dataset].run)

    def document(self) -> dict[str, Any]:
        """What `inlay compare --json` prints."""
        names = ("id", "label", "setting", "seed", "state", "value", "metrics", "seconds", "tokens", "parameters")
        return {
            "name": self.name,
            "datasets": [dataset.document() for dataset in self.datasets],
            "tasks": self.tasks,
            "seeds": list(self.seeds),
            "settings": self.settings,
            "test": significance.TEST,
            "best": None if self.best is None else self.best.method,
            "methods": [line.document() for line in self.lines],
            "says": list(self.says),
            "notes": list(self.notes),
            "runs": [{**{n: getattr(row, n) for n in names}, "problem": row.error} for row in self.rows],
            "store": None if self.store is None else str(self.store),
        }

    to_csv = write_csv
    to_latex = write_latex
    plot = write_plot
    _repr_html_ = html_table
