"""What the runs of a recipe give in each cell of its table: those that validation picks, and what is reported of them.

With `report = "best"` that is the best run of all settings and seeds, else all seeds of the best setting. Where the
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
"""Of an adapter while it is scored."""


@dataclass(frozen=True)
class Result:
    """A cell."""

    values: tuple[float, ...]
    """Of the seeds that are reported; times 100."""
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
        part = self.part(row, column)
        if row.is_baseline:
            return self._baseline(row, column)
        picked = self._picked(row, column, part, self.chosen.recipe.report)
        if not picked:
            return None
        values = [self._value(row, column, part, one) for one in picked]
        known = tuple(100 * value for value in values if value is not None)
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
        values = {one.seed: self._value(row, column, part, one) for one in picked}
        return {seed: 100 * value for seed, value in values.items() if value is not None}

    def part(self, row: Row, column: Column) -> Part:
        """Where the runs of a cell are."""
        name = self.chosen.part(row, column.dataset)
        return next(one for one in self.runner.parts if one.about.name == name)

    def _picked(self, row: Row, column: Column, part: Part, report: str) -> Sequence[Ran]:
        own = [replace(self._ran[trial.id], setting=dict(trial.setting)) for trial in part.trials]
        done = [one for one in own if one.setting["method"] in row.methods and one.state == "done"]
        done = [one for one in done if one.value is not None and not math.isnan(one.value)]
        needs_adapter = column.language is not None or row.shows == "kept"
        if report == "best" and not needs_adapter:
            return [max(done, key=lambda one: (one.value or 0.0, -one.position))] if done else []
        ranking = rank(done, part.about.metric, "mean", self.chosen.seeds)
        return [] if not ranking else ranking[0].runs[:1] if needs_adapter else ranking[0].runs

    def _value(self, row: Row, column: Column, part: Part, one: Ran) -> float | None:
        metric = column.metric
        if row.shows == "kept":
            return self._kept(one)
        if column.language is not None:
            return self._in_language(column, one)
        if row.shows == "score":
            return one.metrics[part.about.split][metric]
        seen = [float(entry["metrics"][metric]) for entry in evaluations(one)]
        return statistics.fmean(seen) if row.shows == "mean of evaluations" else max(seen)

    def _baseline(self, row: Row, column: Column) -> Result | None:
        values = tuple(self.by_seed(row, column).values())
        return Result(values, row.methods[0]) if values else None

    def _kept(self, one: Ran) -> float | None:
        """How much of L-alpha its gates are expected to let through."""
        adapter = self._adapter(one)
        gates = list((adapter.about.get("gates") or {}).values()) if adapter is not None else []
        whole = sum(gate["of"] for gate in gates)
        return sum(gate["expected"] for gate in gates) / whole if whole else None

    def _in_language(self, column: Column, one: Ran) -> float | None:
        found = next(found for found in self.chosen.found if found.dataset.name == column.dataset.name)
        file = found.languages[column.name]
        parts = [digest(part) for part in parts_of(str(file))]
        key = f"language {one.id} {parts or digest(str(file))}"
        key += f" {column.metric}" * (column.dataset.selection is not None)
        known: float | None = self.runner.store.about(key)
        if known is not None:
            return known
        adapter = self._adapter(one)
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
            given = {role: name for role, name in columns.items() if name in source.columns}
            given = {role: name for role, name in given.items() if role == "label"} if unnamed else given
            examples, _ = read_examples(source, host.task(_NAME), given, stop, True, in_pairs(columns))
            scores, _ = measure(host, _NAME, examples)
        finally:
            host.unload(_NAME)
        if metric not in scores:
            raise DataError(f"{file.name}: {metric} cannot be computed: its tags are of another kind")
        return scores[metric]

    def _adapter(self, one: Ran) -> Adapter | None:
        found = self.runner.store.adapter(one.id)
        if found is None:
            self.notes[f"{one.label}: its adapter was not kept; run again with --restart to score it"] = None
        return found


def _varied(part: Part) -> set[str]:
    """The settings of which there is a choice."""
    keys = [key for key in part.trials[0].setting if key != "method"]
    return {key for key in keys if len({str(trial.setting.get(key)) for trial in part.trials}) > 1}
