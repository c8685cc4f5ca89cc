"""The cells of a recipe's table: the runs that validation picks, and their scores.

With `report = "best"` a cell has the best run of all settings and seeds, else all seeds of the best setting. Where the
adapter itself is needed (languages, what L0 has kept), it is that of the best seed of the best setting, which the file
of the runs keeps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inlay.analysis.curves import evaluations
from inlay.comparison.plan import Part
from inlay.comparison.runner import ComparisonRunner
from inlay.data.columns import in_pairs
from inlay.data.digest import digest
from inlay.data.folder import parts_of
from inlay.data.guess import is_unnamed
from inlay.data.record import stop
from inlay.data.source import open_source
from inlay.engine.evaluate import measure
from inlay.errors import DataError
from inlay.library.adapter import Adapter
from inlay.metrics import sample_std
from inlay.recipes.plan import Chosen
from inlay.recipes.recipe import Column, Row
from inlay.runs.prepare import read_examples
from inlay.sweeps.store import Row as Ran
from inlay.sweeps.table import rank

_NAME = "recipe"
"""The name of an adapter in the host while it is scored."""


@dataclass(frozen=True)
class Result:
    """A cell."""

    values: tuple[float, ...]
    """The scores of the seeds that are reported, times 100."""
    method: str | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    share: float | None = None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    def spread(self, kind: str) -> float | None:
        """The standard deviation of the sample, or the standard error of the mean; None for a single seed."""
        std = sample_std(self.values)
        return std / math.sqrt(len(self.values)) if std is not None and kind == "sem" else std


class Results:
    """The cells of a table, as far as runs are done."""

    def __init__(self, chosen: Chosen, runner: ComparisonRunner):
        self.chosen, self.runner = chosen, runner
        self.notes: dict[str, None] = {}
        """What cannot be scored, and why."""
        self._ran = {row.id: row for row in runner.rows()}

    def of(self, row: Row, column: Column) -> Result | None:
        """A cell; None if none of its runs is done, or it cannot be scored."""
        if row.is_baseline:
            values = tuple(self.by_seed(row, column).values())
            return Result(values, row.methods[0]) if values else None
        part = self.part(row, column)
        picked = self._picked(row, column, part, self.chosen.recipe.report)
        if not picked:
            return None
        scores = [self._value(row, column, part, ran) for ran in picked]
        known = tuple(100 * score for score in scores if score is not None)
        first = picked[0]
        setting = {key: value for key, value in first.setting.items() if key in _varied(part)}
        setting |= {"seed": first.seed} if self.chosen.recipe.report == "best" else {}
        counted = (int(first.parameters["adapter"]), float(first.parameters["share_of_base"]))
        return Result(known, str(first.setting["method"]), setting, *counted) if known else None

    def by_seed(self, row: Row, column: Column) -> dict[int, float]:
        """Seed -> score times 100, of the setting with the best mean, whatever the recipe reports."""
        part = self.part(row, column)
        if row.is_baseline:
            scores = self.runner.scores.get((row.methods[0], part.about.name), {})
            return {seed: 100 * score.metrics[part.about.split][column.metric] for seed, score in scores.items()}
        picked = self._picked(row, column, part, "mean")
        values = {ran.seed: self._value(row, column, part, ran) for ran in picked}
        return {seed: 100 * value for seed, value in values.items() if value is not None}

    def part(self, row: Row, column: Column) -> Part:
        """The part of the comparison that has the runs of a cell."""
        name = self.chosen.part(row, column.dataset)
        return next(part for part in self.runner.parts if part.about.name == name)

    def _picked(self, row: Row, column: Column, part: Part, report: str) -> Sequence[Ran]:
        rows = [replace(self._ran[trial.id], setting=dict(trial.setting)) for trial in part.trials]
        done = [ran for ran in rows if ran.setting["method"] in row.methods and ran.state == "done"]
        done = [ran for ran in done if ran.value is not None and not math.isnan(ran.value)]
        needs_adapter = column.language is not None or row.shows == "kept"
        if report == "best" and not needs_adapter:
            return [max(done, key=lambda ran: (ran.value or 0.0, -ran.position))] if done else []
        ranking = rank(done, part.about.metric, "mean", self.chosen.seeds)
        return [] if not ranking else ranking[0].runs[:1] if needs_adapter else ranking[0].runs

    def _value(self, row: Row, column: Column, part: Part, ran: Ran) -> float | None:
        metric = column.metric
        if row.shows == "kept":
            return self._kept(ran)
        if column.language is not None:
            return self._in_language(column, ran)
        if row.shows == "score":
            return ran.metrics[part.about.split][metric]
        values = [float(entry["metrics"][metric]) for entry in evaluations(ran)]
        return statistics.fmean(values) if row.shows == "mean of evaluations" else max(values)

    def _kept(self, ran: Ran) -> float | None:
        """The share of L-alpha that its gates are expected to keep."""
        adapter = self._adapter(ran)
        gates = list((adapter.about.get("gates") or {}).values()) if adapter is not None else []
        whole = sum(gate["of"] for gate in gates)
        return sum(gate["expected"] for gate in gates) / whole if whole else None

    def _in_language(self, column: Column, ran: Ran) -> float | None:
        found = next(f for f in self.chosen.found if f.dataset.name == column.dataset.name)
        file = found.languages[column.name]
        parts = [digest(part) for part in parts_of(str(file))]
        key = f"language {ran.id} {parts or digest(str(file))}"
        key += f" {column.metric}" * (column.dataset.selection is not None)
        known: float | None = self.runner.store.about(key)
        if known is not None:
            return known
        adapter = self._adapter(ran)
        if adapter is None:
            return None
        try:
            value = self._scored(adapter, file, column.metric)
        except DataError as error:
            self.notes[f"{column.name}: {error}"] = None
            return None
        self.runner.store.note(key, value)
        return value

    def _scored(self, adapter: Adapter, file: Path, metric: str) -> float:
        host = self.runner.host
        host.load(adapter, _NAME)
        try:
            source, columns = open_source(file), dict(adapter.about.get("columns") or {})
            unnamed = is_unnamed(columns.get("pair", ""))  # a number: another file may have its labels there
            roles = {role: name for role, name in columns.items() if name in source.columns}
            roles = {role: name for role, name in roles.items() if role == "label"} if unnamed else roles
            examples, _ = read_examples(source, host.task(_NAME), roles, stop, True, in_pairs(columns))
            scores, _ = measure(host, _NAME, examples)
        finally:
            host.unload(_NAME)
        if metric not in scores:
            raise DataError(f"{file.name}: {metric} cannot be computed: its tags are of another kind")
        return scores[metric]

    def _adapter(self, ran: Ran) -> Adapter | None:
        adapter = self.runner.store.adapter(ran.id)
        if adapter is None:
            self.notes[f"{ran.label}: its adapter was not kept; run again with --restart to score it"] = None
        return adapter


def _varied(part: Part) -> set[str]:
    """The settings that have more than one value."""
    keys = [key for key in part.trials[0].setting if key != "method"]
    return {key for key in keys if len({str(trial.setting.get(key)) for trial in part.trials}) > 1}
