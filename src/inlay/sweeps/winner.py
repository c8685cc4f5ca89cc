"""Which setting wins: of those that the score cannot tell from the best, the one with the lowest validation loss.

The best of many settings on a few hundred validation rows is mostly the luckiest: a score moves in steps of one row.
The loss of calibrated answers says more about the same rows. So among the settings that are not worse than the best by
more than one standard error, the one with the lowest loss wins; docs/results.md shows what that gains. Where losses
are not known (runs of older versions, tasks whose losses cannot be compared), the one nearest to the defaults does
(Breiman et al., 1984, who take the simplest tree).

The error of a difference is the larger of two. The one of the validation rows is a jackknife (engine/evaluate.py),
paired: runs of one seed are scored on the same rows, and err on many of the same. The one of the seeds is the usual
one; of all settings the median, so that a setting which fails with one seed is not excused by its own spread.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay import metrics
from inlay.runs.few import own_rate
from inlay.runs.run import Run
from inlay.sweeps.grid import Space
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry, key
from inlay.sweeps.values import in_words, is_number

_DIGITS = 4
"""Losses that agree in this many decimals are equal."""
_ROUNDING = 1e-9
"""A gain exactly as large as its error must not exceed it by rounding."""


@dataclass(frozen=True)
class Verdict:
    """The setting that wins, and why."""

    entry: Entry
    run: Row
    """Its run with the lowest validation loss."""
    why: str
    """In a sentence."""
    gain: float | None = None
    """How much better the best mean is than that of the setting it is compared with."""
    error: float | None = None
    """The standard error of that difference."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        chosen = {"setting": self.entry.setting, "id": self.run.id, "seed": self.run.seed}
        return {**chosen, "gain": self.gain, "error": self.error, "why": self.why}


@dataclass(frozen=True)
class _Candidate:
    """A setting beside the one with the best mean."""

    entry: Entry
    name: str
    gain: float
    """How much better the best mean is."""
    error: float | None
    """The standard error of that; None where it is not known."""
    distance: float
    """How far it is from the defaults."""
    loss: float
    """The mean over seeds, with calibrated answers; nan where it is not known."""

    @property
    def order(self) -> tuple[float, int, int]:
        """The smallest goes first, if nothing else decides."""
        return self.distance, self.entry.parameters, self.entry.rank

    def verdict(self, why: str, gain: float | None = None, error: float | None = None) -> Verdict:
        """The verdict that it wins."""
        return Verdict(self.entry, lowest_loss(self.entry), why, gain, error)


def decide(ranking: Sequence[Entry], metric: str, distances: Mapping[str, float], keys: Sequence[str]) -> Verdict:
    """The winner.

    Args:
        ranking: the best mean first, settings with a missing seed last.
        distances: key of a setting -> how far it is from the defaults.
        keys: what varies.
    """
    first = ranking[0]
    sign = -1.0 if metric in metrics.LOWER_IS_BETTER else 1.0
    whole = [entry for entry in ranking[1:] if len(entry.runs) == entry.seeds or len(first.runs) < first.seeds]
    spread = _seeds_error(first, whole)

    def candidate(entry: Entry) -> _Candidate:
        name, distance = in_words(entry.setting, keys) or "the setting", distances.get(key(entry.setting), 0.0)
        gain, error = sign * (first.mean - entry.mean), _error(first, entry, spread)
        return _Candidate(entry, name, gain, error, distance, _mean_loss(entry))

    best, others = candidate(first), [candidate(entry) for entry in whole]
    close = [c for c in others if c.gain <= (c.error or 0.0) + _ROUNDING]
    if close and not any(math.isnan(c.loss) for c in (best, *close)):
        return _by_loss(best, close)
    chosen = min([best, *close], key=lambda c: c.order)
    nearest = min([best, *others], key=lambda c: c.order)
    beside = chosen if chosen is not best else nearest
    if beside is best:
        alike = all(c.distance == best.distance for c in others)
        return best.verdict(f"{best.name} is best" + " and nearest to the defaults" * (not alike) if others else "")
    near = "which is nearer to the defaults" if beside.distance < best.distance else "which has fewer parameters"
    near = "the default" if beside.distance == 0.0 < best.distance else near
    if not beside.gain:
        why = f"{best.name} and {chosen.name} are equally good, so {chosen.name}, {near}, wins"
        return chosen.verdict(why, 0.0, beside.error)
    if beside.error is None:
        why = f"{best.name} is best by {beside.gain:.4f}; one run says nothing about the error of that"
        return best.verdict(why, beside.gain)
    by = f"{best.name} is best by {beside.gain:.4f} ± {beside.error:.4f}"
    if chosen is best:
        why = f"{by}, which is more than one standard error, so it wins over {beside.name}"
    else:
        why = f"{by}, which is within one standard error, so {chosen.name}, {near}, wins"
    return chosen.verdict(why, beside.gain, beside.error)


def _by_loss(best: _Candidate, close: Sequence[_Candidate]) -> Verdict:
    """The setting with the lowest loss, of the best and those that its score cannot tell from it."""
    chosen, second = sorted((best, *close), key=lambda c: (c.loss, *c.order))[:2]
    beside, other = (second, second) if chosen is best else (chosen, best)  # to compare the best and the chosen with
    if beside.gain:
        over = f" over {beside.name}" if chosen is best else ""
        by = f"{best.name} is best by {beside.gain:.4f} ± {beside.error:.4f}{over}"
        by += ", which is within one standard error"
    else:
        by = f"{best.name} and {beside.name} are equally good"
    if chosen.loss < other.loss:
        values = f"{chosen.loss:.{_DIGITS}f} against {other.loss:.{_DIGITS}f}"
        why = f"{by}, and {chosen.name} has the lowest validation loss ({values}), so it wins"
    else:
        is_smaller = chosen.distance == other.distance and chosen.entry.parameters < other.entry.parameters
        why = "whose score is better" if beside.gain else "which comes first"
        why = "which has fewer parameters" if is_smaller else why
        why = "which is nearer to the defaults" if chosen.distance < other.distance else why
        why = f"{by}, and their validation losses are equal, so {chosen.name}, {why}, wins"
    return chosen.verdict(why, beside.gain, beside.error)


def _mean_loss(entry: Entry) -> float:
    losses = [row.loss for row in entry.runs if row.loss is not None and math.isfinite(row.loss)]
    return round(statistics.fmean(losses), _DIGITS) if len(losses) == len(entry.runs) else math.nan


def lowest_loss(entry: Entry) -> Row:
    """The run of a setting with the lowest validation loss; the best by score where losses are not known."""
    losses = [row.loss for row in entry.runs]
    if None in losses:
        losses = [validation_loss(row) for row in entry.runs]
    known = [loss for loss in losses if loss is not None]
    return entry.runs[losses.index(min(known))] if len(known) == len(losses) else entry.best


def validation_loss(row: Row) -> float | None:
    """The loss of the state that was kept: of the evaluation with the run's score, or the lowest where none has it.

    Where the last state is kept, an earlier one may have the same score. Folds count equally.
    """
    seen = [entry for entry in row.history if isinstance(entry.get("validation_loss"), float)]
    if row.config.get("choose_by") == "last":
        last = {entry.get("fold"): entry["validation_loss"] for entry in seen}
        return statistics.fmean(last.values()) if last else None
    same = [entry for entry in seen if entry["metrics"].get(row.metric) == row.value]
    return min((entry["validation_loss"] for entry in same or seen), default=None)


def distances(space: Space, ranking: Sequence[Entry], few_shot: bool | None = False) -> dict[str, float]:
    """How far settings are from the defaults, by their keys."""
    return {key(entry.setting): _distance(space, entry.setting, few_shot) for entry in ranking}


def _distance(space: Space, setting: Mapping[str, Any], few_shot: bool | None) -> float:
    """The sum of absolute logarithms of ratios, and of 1 for every other value that differs."""
    method = space.method(setting)
    usual = type(method)()
    total = 0.0 if method.name == Run.model_fields["method"].default else 1.0
    for option in dataclasses.fields(method):
        if option.init:
            total += _apart(getattr(method, option.name), getattr(usual, option.name))
    for axis in space.branch(setting).axes:
        if not axis.is_option:
            value, default = setting[axis.key], Run.model_fields[axis.key].default
            usual_value = own_rate(method, few_shot) if axis.key == "lr" else default
            total += 0.0 if value == default else _apart(value, usual_value)
    return total


def _apart(value: Any, usual: Any) -> float:
    positive = all(is_number(v) and v > 0 for v in (value, usual))
    return abs(math.log(value / usual)) if positive else float(value != usual)


def _seeds_error(best: Entry, others: Sequence[Entry]) -> float | None:
    """The median over settings of the standard error of the difference over seeds; None with one seed."""
    errors = []
    for entry in others:
        pairs = _pairs(best, entry)
        if len(pairs) > 1:
            differences = [(a.value or 0.0) - (b.value or 0.0) for a, b in pairs]
            errors.append(statistics.stdev(differences) / math.sqrt(len(differences)))
    return statistics.median(errors) if errors else None


def _error(best: Entry, entry: Entry, spread: float | None) -> float | None:
    """The standard error of the difference of two settings' means; None where it is not known."""
    pairs = _pairs(best, entry)
    parts = {len(row.replicates) for pair in pairs for row in pair}
    if not pairs or len(parts) != 1 or parts == {0}:
        return spread
    differences = [
        statistics.fmean(a.replicates[i] - b.replicates[i] for a, b in pairs) for i in range(min(parts))
    ]  # rows of another seed are other rows; then their errors cancel in the mean, as they should
    middle, count = statistics.fmean(differences), len(differences)
    rows = math.sqrt((count - 1) / count * math.fsum((d - middle) ** 2 for d in differences))
    return max(rows, spread or 0.0)


def _pairs(entry: Entry, other: Entry) -> list[tuple[Row, Row]]:
    """Runs of the same seed."""
    seeds = {row.seed: row for row in other.runs}
    return [(row, seeds[row.seed]) for row in entry.runs if row.seed in seeds]
