"""`--ensemble N`: the runs of a sweep that answer best together, as one card in the library.

All runs are validated on the same rows, which none of them has learned from (`Run.split_seed`). The best of them are
candidates; each answers the validation rows once, and the choice is made among these answers (greedy.py). No run has
more than half of the picks: with few validation rows the luckiest would often have all of them, and be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inlay import metrics
from inlay.engine.evaluate import answers_to
from inlay.engine.host import Host
from inlay.library.adapter import Adapter
from inlay.library.ensemble import Ensemble
from inlay.runs.prepare import Prepared
from inlay.sweeps.greedy import judge_of, pick
from inlay.sweeps.store import Row
from inlay.sweeps.winner import validation_loss
from inlay.tasks import Answer
from inlay.training.ensemble import metrics_of

CANDIDATES = 20
"""Runs to choose from, the best by validation. Their adapters are kept."""
ALIKE = ("text", "pair", "max_length", "long", "train_size", "fold", "folds")
"""Settings that cannot vary: members read the same texts in the same way, and are validated on the same rows."""
_NAME = "candidate#"
"""The name of a candidate in the host while it answers."""


@dataclass(frozen=True)
class Chosen:
    """An ensemble of a sweep's runs."""

    picks: int
    """As many as requested, or fewer where runs are few: no run has more than half of the number requested."""
    members: tuple[tuple[Row, int], ...]
    """Runs, and how often each counts; the best first."""
    candidates: int
    by: str
    """What measures an ensemble on validation rows: loss, or the metric where members vote."""
    metrics: dict[str, dict[str, float]]
    """split -> metric -> value, of all together."""
    single: dict[str, dict[str, float]]
    """The same of the single run that wins."""
    adapter: Adapter | Ensemble = field(repr=False)
    """One adapter where only one run has finished."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        names = ("id", "label", "setting", "seed", "value")
        members = [{**{name: getattr(row, name) for name in names}, "count": count} for row, count in self.members]
        choice = {"picks": self.picks, "candidates": self.candidates, "by": self.by, "members": members}
        return {**choice, "metrics": self.metrics, "single": self.single}


def problems(picks: Any, keys: Collection[str], settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with asking for an ensemble."""
    wrong = []
    if type(picks) is not int or picks < 2:
        wrong.append(f"ensemble={picks} (--ensemble) is not valid: expected 2 or more")
    why = "cannot vary with an ensemble (--ensemble): its members read the same rows in the same way"
    wrong += [f"{key} {why}" for key in ALIKE if key in keys]
    if settings.get("folds"):
        wrong.append("folds (--folds) cannot be combined with an ensemble: all its runs are validated on the same rows")
    return wrong


def candidates(rows: Sequence[Row], metric: str) -> list[Row]:
    """The best finished runs by validation; equally good ones in the order of their losses."""
    sign = 1.0 if metric in metrics.LOWER_IS_BETTER else -1.0
    done = [row for row in rows if row.state == "done" and row.value is not None and row.value == row.value]

    def order(row: Row) -> tuple[float, float, int]:
        loss = validation_loss(row)
        return sign * (row.value or 0.0), float("inf") if loss is None else loss, row.position

    return sorted(done, key=order)[:CANDIDATES]


def choose(
    host: Host, data: Prepared, rows: Sequence[Row], winner: Row, picks: int, name: str, load: Callable[[Row], Adapter]
) -> Chosen:
    """The ensemble of `picks` picks among candidates, measured as it will be served.

    Args:
        data: the validation and test rows that all runs share.
        load: gives the adapter of a run.
    """
    answers = [_answers(host, load(row), data) for row in rows]
    task, labels = data.task, data.labels
    judge, by = judge_of(task, data.validation.examples, answers, labels, data.metric)
    counts = pick(len(rows), picks, judge, most=max(1, picks // 2))
    order = sorted((i for i, count in enumerate(counts) if count), key=lambda i: -counts[i])
    members = tuple((rows[i], counts[i]) for i in order)
    if len(members) == 1:
        row = members[0][0]
        return Chosen(sum(counts), members, len(rows), by, row.metrics, winner.metrics, load(row))
    adapters = tuple(replace(load(row), name=f"{name}-{i}") for i, (row, _) in enumerate(members, 1))
    ensemble = Ensemble(adapters, tuple(count for _, count in members), name)
    scores = metrics_of(host, ensemble, [data] * len(adapters))
    scored_on = {"validation": data.validation.content}
    about: dict[str, Any] = {
        **Ensemble.shared(adapters),
        "metrics": scores,
        "data": data.data_hash,
        "files": data.files,
        "scored_on": scored_on | ({"test": data.test.content} if data.test is not None else {}),
    }
    return Chosen(sum(counts), members, len(rows), by, scores, winner.metrics, replace(ensemble, about=about))


def _answers(host: Host, adapter: Adapter, data: Prepared) -> Sequence[Answer]:
    host.load(adapter, _NAME)
    try:
        return answers_to(host, _NAME, data.validation.examples)[0]
    finally:
        host.unload(_NAME)
