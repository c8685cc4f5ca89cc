"""One comparison from its plan to its result.

All runs of all datasets go through one loop, side by side, and into one SQLite file, with the identities that they have
in a sweep: the same command, more methods or more seeds run only what is new.
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
    """Runs what has not been run, and puts the result together."""

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
        own: dict[str, Trial] = {}
        for trial in (trial for part in parts for trial in part.trials):
            own.setdefault(trial.id, trial)  # what two parts have is run once, and called as in the first
        self.trials = list(own.values())
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
        """What decides on the first dataset."""
        return self.parts[0].about.metric

    def metric_of(self, label: str) -> str:
        """What decides a run."""
        return next((trial.data.metric for trial in self.trials if trial.label == label), self.metric)

    def rows(self) -> list[Row]:
        """All runs, in the order of datasets and methods."""
        return self.store.rows_of(self.trials)

    def run(self) -> Comparison:
        """Baselines first, which are quick; then every run that has not been run."""
        if self.plan.baselines:
            self.run_baselines()
        self.engine.run(self.trials, keep=lambda: {entry.best.id for entry in self._entries().values()})
        return self.result()

    def run_baselines(self) -> None:
        """All baselines that there are; notes say what there is not."""
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
        """What is known by now."""
        datasets = [part.about for part in self.parts]
        entries = self._entries()
        # parts that were planned apart have methods of their own
        methods = list(dict.fromkeys(branch.method for part in self.parts for branch in part.space.branches))
        tasks = self.plan.tasks or len(datasets)
        lines = [self._method(method, entries, tasks) for method in methods]
        lines += [self._baseline(name) for name in baselines.NAMES if any(key[0] == name for key in self.scores)]
        judged = ranked([line for line in lines if line.cells], datasets)
        rows = self.rows()
        notes = [*self.notes, *_failures(rows)]
        first = self.parts[0]
        settings = len(first.trials) // (len(first.space.branches) * self.plan.seeds)
        seeds = tuple(self.parts[0].data)
        said = conclusions(judged, datasets)
        where = (tuple(rows), self.store.path, self.store.adapter)
        return Comparison(self.name, tuple(datasets), judged, tasks, seeds, settings, tuple(said), tuple(notes), *where)

    def _entries(self) -> dict[tuple[str, str], Entry]:
        """(method, dataset) -> the setting that validation chose, of those that came to an end."""
        found, rows = {}, {row.id: row for row in self.rows()}
        for part in self.parts:
            own = [rows[trial.id] for trial in part.trials]
            for branch in part.space.branches:
                mine = [row for row in own if row.setting["method"] == branch.method]
                ranking = rank(mine, part.about.metric, "mean", self.plan.seeds)
                if ranking:
                    found[branch.method, part.about.name] = ranking[0]
        return found

    def _method(self, method: str, entries: Mapping[tuple[str, str], Entry], tasks: int) -> Line:
        cells = {}
        for part in self.parts:
            entry = entries.get((method, part.about.name))
            if entry is not None:
                cells[part.about.name] = self._cell(entry, part.about)
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
        """Noted once: adapters of settings that no longer win are not kept."""
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
