"""The result of a sweep: settings ranked by validation, never by test.

`mean` ranks settings by the mean over their seeds, and takes the best seed of the best setting; a setting with a seed
that is not done comes after those with all seeds. `best` ranks by the best single run. Ties go to fewer parameters,
then to what was given first. `careful` ranks as `mean` does, but of the first and those that are not worse by more than
the error of the difference, the one with the lowest validation loss wins (winner.py).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inlay import metrics
from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.sweeps.exports import html_table, write_csv, write_latex
from inlay.sweeps.plot import write_plot
from inlay.sweeps.store import Row

if TYPE_CHECKING:
    from inlay.sweeps.ensemble import Chosen
    from inlay.sweeps.winner import Verdict

Select = Literal["careful", "mean", "best"]
SELECT = ("careful", "mean", "best")


@dataclass(frozen=True)
class Entry:
    """One setting, with all its seeds."""

    rank: int
    setting: dict[str, Any]
    """What varies."""
    runs: tuple[Row, ...]
    """Those that are done, the best first."""
    seeds: int
    """How many were requested."""
    mean: float
    std: float | None
    """Of the sample; None for a single run."""
    test: float | None
    """Mean of the same metric on test rows, if there are any. Nothing is chosen by it."""
    test_std: float | None
    seconds: float
    """Of all its runs together."""
    parameters: int
    """Of the adapter, without its head."""

    @property
    def best(self) -> Row:
        """The best run."""
        return self.runs[0]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rank": self.rank,
            "setting": self.setting,
            "mean": self.mean,
            "std": self.std,
            "best": self.best.value,
            "runs": len(self.runs),
            "seeds": self.seeds,
            "test": self.test,
            "test_std": self.test_std,
            "seconds": round(self.seconds, 2),
            "parameters": self.parameters,
            "id": self.best.id,
        }


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, and their ranking."""

    name: str
    metric: str
    """What decides, on validation rows."""
    select: Select
    keys: tuple[str, ...]
    """What varies."""
    rows: tuple[Row, ...]
    ranking: tuple[Entry, ...]
    """Settings with a finished run, the best first."""
    store: Path | None = None
    version: int | None = None
    """Of the winner in the library, if it was put there."""
    library: str | None = None
    verdict: Verdict | None = None
    """Which setting wins and why, if `select` is careful."""
    ensemble: Chosen | None = None
    """The runs that answer as one, if an ensemble was requested."""
    report: str | None = None
    """A metric that is only shown."""
    _load: Callable[[str], Adapter | None] = field(default=lambda id: None, repr=False)

    def reported(self, entry: Entry) -> dict[str, list[float]]:
        """Split -> the metric to report, of every run of a setting; empty if there is none."""
        names = dict.fromkeys(name for row in entry.runs for name in row.metrics) if self.report else ()
        return {name: [row.metrics[name][str(self.report)] for row in entry.runs] for name in names}

    @property
    def best(self) -> Entry:
        """The setting that wins."""
        if not self.ranking:
            problems = list(dict.fromkeys(row.error for row in self.rows if row.error))
            raise RunError(f"no run of {self.name} has finished" + (f": {problems[0]}" if problems else ""))
        return self.ranking[0] if self.verdict is None else self.verdict.entry

    @property
    def winner(self) -> Row:
        """The run of that setting whose adapter is used."""
        return self.best.best if self.verdict is None else self.verdict.run

    @property
    def adapter(self) -> Adapter:
        """The winner's adapter."""
        adapter = self._load(self.winner.id)
        if adapter is None:
            raise RunError(f"the adapter of {self.winner.label} was not kept; sweep again with best=True")
        return adapter

    def count(self, state: str) -> int:
        """How many runs are in a state."""
        return sum(row.state == state for row in self.rows)

    def summary(self) -> dict[str, Any]:
        """What the winner's card says about the sweep."""
        best = self.best
        states = {state: self.count(state) for state in ("done", "pruned", "failed")}
        return {
            "runs": len(self.rows),
            **states,
            "settings": len({key(row.setting) for row in self.rows}),
            "varied": {k: _distinct(row.setting.get(k) for row in self.rows) for k in self.keys},
            "seeds": best.seeds,
            "metric": self.metric,
            "select": self.select,
            "mean": best.mean,
            "std": best.std,
            "seconds": round(sum(row.seconds for row in self.rows), 2),
            "trial": self.winner.id,
            "ranking": [{"setting": e.setting, "mean": e.mean, "std": e.std} for e in self.ranking[:10]],
            **({"ensemble": self.ensemble.document()} if self.ensemble is not None else {}),
            **({"why": self.verdict.why} if self.verdict is not None and self.verdict.why else {}),
        }

    def document(self) -> dict[str, Any]:
        """What `inlay sweep --json` prints."""
        names = "id label setting seed state value loss metrics seconds tokens parameters".split()
        return {
            "name": self.name,
            "version": self.version,
            "library": self.library,
            "metric": self.metric,
            "select": self.select,
            "varied": list(self.keys),
            "best": {**self.best.document(), "id": self.winner.id, "config": self.winner.config}
            if self.ranking
            else None,
            "winner": None if self.verdict is None else self.verdict.document(),
            "ensemble": None if self.ensemble is None else self.ensemble.document(),
            "ranking": [entry.document() | self._reported(entry) for entry in self.ranking],
            "runs": [{**{n: getattr(row, n) for n in names}, "problem": row.error} for row in self.rows],
            "store": None if self.store is None else str(self.store),
        }

    def _reported(self, entry: Entry) -> dict[str, Any]:
        means = {split: statistics.fmean(values) for split, values in self.reported(entry).items()}
        return {"reported": {"metric": self.report, **means}} if means else {}

    to_csv = write_csv
    to_latex = write_latex
    plot = write_plot
    _repr_html_ = html_table


def rank(rows: Sequence[Row], metric: str, select: Select, seeds: int) -> tuple[Entry, ...]:
    """Settings of finished runs, the best first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.state == "done" and row.value is not None and not math.isnan(row.value):
            groups.setdefault(key(row.setting), []).append(row)
    sign = 1 if metric in metrics.LOWER_IS_BETTER else -1

    def order(entry: Entry) -> tuple[Any, ...]:
        value = entry.best.value if select == "best" else entry.mean
        assert value is not None
        is_part = select != "best" and len(entry.runs) < entry.seeds
        return is_part, sign * value, entry.parameters, min(row.position for row in entry.runs)

    entries = sorted((_entry(group, metric, sign, seeds) for group in groups.values()), key=order)
    return tuple(Entry(**{**vars(entry), "rank": i}) for i, entry in enumerate(entries, 1))


def _entry(rows: Sequence[Row], metric: str, sign: int, seeds: int) -> Entry:
    runs = tuple(sorted(rows, key=lambda row: (sign * (row.value or 0.0), row.position)))
    values = [row.value for row in runs if row.value is not None]
    tests = [row.metrics["test"][metric] for row in runs if metric in row.metrics.get("test", {})]
    return Entry(
        rank=0,
        setting=runs[0].setting,
        runs=runs,
        seeds=seeds,
        mean=statistics.fmean(values),
        std=metrics.sample_std(values),
        test=statistics.fmean(tests) if tests else None,
        test_std=metrics.sample_std(tests),
        seconds=sum(row.seconds for row in runs),
        parameters=int(runs[0].parameters.get("adapter", 0)),
    )


def worth_keeping(rows: Sequence[Row], metric: str, seeds: int) -> set[str]:
    """The runs that win by `mean` or `best`."""
    rankings = (rank(rows, metric, select, seeds) for select in ("mean", "best"))
    return {row.id for ranking in rankings for entry in ranking[:1] for row in entry.runs}


def key(setting: dict[str, Any]) -> str:
    """Equal for equal settings."""
    return json.dumps(setting, sort_keys=True)


def _distinct(values: Any) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        if value is not None and value not in distinct:
            distinct.append(value)
    return distinct
