"""A comparison from its plan to its result.

All runs of all datasets go through one loop, side by side, and into one SQLite file, with the identities that they have
in a sweep: repeating the command, or adding methods or seeds, only runs what is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inlay.bank.delta import parse
from inlay.comparison import baselines
from inlay.comparison.conclusions import conclusions
from inlay.comparison.plan import Part, Plan
from inlay.comparison.ranking import ranked, total_parameters
from inlay.comparison.table import Cell, Comparison, Dataset, Line
from inlay.comparison.tradeoff import family
from inlay.engine.host import Host
from inlay.errors import InlayError
from inlay.methods.finetune import Finetune
from inlay.sweeps.ray import Cluster, make_engine
from inlay.sweeps.store import Row, Store
from inlay.sweeps.table import Entry, rank
from inlay.sweeps.trial import Trial
from inlay.tracking.events import Callback


class ComparisonRunner:
    """Runs what has not been run yet, and puts the result together."""

    def __init__(
        self,
        host: Host,
        parts: Sequence[Part],
        plan: Plan,
        name: str,
        store: Store,
        slots: int | None = None,
        callbacks: Sequence[Callback] = (),
        save_every: float = 60.0,
        cluster: Cluster | None = None,
    ):
        self.host, self.parts, self.plan, self.name, self.store = host, parts, plan, name, store
        by_id: dict[str, Trial] = {}
        for trial in (trial for part in parts for trial in part.trials):
            by_id.setdefault(trial.id, trial)  # a run of two parts is run once, with the name it has in the first
        self.trials = list(by_id.values())
        self.engine = make_engine(host, store, cluster, slots, callbacks, save_every)
        self.notes: list[str] = []
        self.scores: dict[tuple[str, str], dict[int, baselines.Score]] = {}
        """(baseline, dataset) -> seed -> score."""
        store.add(self.trials)

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.trials)

    @property
    def metric(self) -> str:
        """The metric of the first dataset."""
        return self.parts[0].about.metric

    def metric_of(self, label: str) -> str:
        """The metric of a run."""
        return next((trial.data.metric for trial in self.trials if trial.label == label), self.metric)

    def rows(self) -> list[Row]:
        """All runs, in the order of datasets and methods."""
        return self.store.rows_of(self.trials)

    def run(self) -> Comparison:
        """Run the baselines, which are quick; then every run that has not been run yet."""
        if self.plan.baselines:
            self.run_baselines()
        self.engine.run(self.trials, keep=lambda: {entry.best.id for entry in self._entries().values()})
        return self.result()

    def run_baselines(self) -> None:
        """Run all baselines; notes say why one is missing."""
        for part, name in itertools.product(self.parts, baselines.NAMES):
            first = next(iter(part.data.values()))
            reason = baselines.missing(name, first)
            for seed, data in part.data.items() if not reason else ():
                try:
                    score, was_known = baselines.run(name, data, self.store, self.plan.trials)
                except InlayError as error:
                    reason = f"{name}: {error}"
                    break
                self.scores.setdefault((name, part.about.name), {})[seed] = score
                if not was_known:
                    self._tell(part, name, seed, score)
            if reason:
                self.notes.append(f"{part.about.name}: {reason}")

    def result(self) -> Comparison:
        """The comparison of all runs that have finished by now."""
        datasets = [part.about for part in self.parts]
        entries = self._entries()
        # parts may be planned separately, with different methods
        methods = list(dict.fromkeys(branch.method for part in self.parts for branch in part.space.branches))
        tasks = self.plan.tasks or len(datasets)
        lines = [self._method(method, entries, tasks) for method in methods]
        lines += [self._baseline(name) for name in baselines.NAMES if any(key[0] == name for key in self.scores)]
        judged = ranked([line for line in lines if line.cells], datasets)
        rows = self.rows()
        notes = [*self.notes, *_failures(rows)]
        first = self.parts[0]
        settings = len(first.trials) // (len(first.space.branches) * self.plan.seeds)
        return Comparison(
            name=self.name,
            datasets=tuple(datasets),
            lines=judged,
            tasks=tasks,
            seeds=tuple(first.data),
            settings=settings,
            says=tuple(conclusions(judged, datasets)),
            notes=tuple(notes),
            rows=tuple(rows),
            store=self.store.path,
            _load=self.store.adapter,
        )

    def _entries(self) -> dict[tuple[str, str], Entry]:
        """(method, dataset) -> the setting that validation chose among those that have finished."""
        entries, rows = {}, {row.id: row for row in self.rows()}
        for part in self.parts:
            rows_of_part = [rows[trial.id] for trial in part.trials]
            for branch in part.space.branches:
                rows_of_method = [row for row in rows_of_part if row.setting["method"] == branch.method]
                ranking = rank(rows_of_method, part.about.metric, "mean", self.plan.seeds)
                if ranking:
                    entries[branch.method, part.about.name] = ranking[0]
        return entries

    def _method(self, method: str, entries: Mapping[tuple[str, str], Entry], tasks: int) -> Line:
        datasets = [part.about for part in self.parts]
        cells = {d.name: self._cell(entry, d) for d in datasets if (entry := entries.get((method, d.name)))}
        line = Line(method, family(method), False, cells, None)
        replaces = isinstance(parse(method), Finetune) and line.share >= 1
        return replace(line, total=total_parameters(line.share, tasks, replaces))

    def _cell(self, entry: Entry, dataset: Dataset) -> Cell:
        values = {row.seed: row.metrics[dataset.split][dataset.metric] for row in entry.runs}
        return Cell(
            values=dict(sorted(values.items())),
            validation=entry.mean,
            setting={key: value for key, value in entry.setting.items() if key != "method"},
            seconds=entry.seconds / len(entry.runs),
            parameters=entry.parameters,
            share=float(entry.best.parameters["share_of_base"]),
            bytes=self._bytes(entry.best.id),
            run=entry.best.id,
        )

    def _bytes(self, id: str) -> int | None:
        """The size of a run's adapter, noted in the store: adapters of settings that no longer win are not kept."""
        known: int | None = self.store.about(f"bytes {id}")
        adapter = self.store.adapter(id) if known is None else None
        if adapter is not None:
            known = len(adapter.content())
            self.store.note(f"bytes {id}", known)
        return known

    def _baseline(self, name: str) -> Line:
        cells = {}
        for part in self.parts:
            scores = self.scores.get((name, part.about.name))
            if scores:
                metric, split, n = part.about.metric, part.about.split, len(scores)
                values = {seed: score.metrics[split][metric] for seed, score in scores.items()}
                validation = sum(score.metrics["validation"][metric] for score in scores.values()) / n
                seconds = sum(score.seconds for score in scores.values()) / n
                chosen = {str(seed): score.setting for seed, score in scores.items() if score.setting}
                cells[part.about.name] = Cell(values, validation, chosen, seconds)
        return Line(name, name, True, cells, None)

    def _tell(self, part: Part, name: str, seed: int, score: baselines.Score) -> None:
        event: dict[str, Any] = {"event": "baseline", "run": f"{part.about.name} {name} seed={seed}"}
        event |= {"metric": part.about.metric, "metrics": score.metrics}
        for callback in self.engine.callbacks:
            callback(event)


def _failures(rows: Iterable[Row]) -> list[str]:
    return [f"{row.label} failed: {row.error}" for row in rows if row.state == "failed"]
