"""What follows from a comparison: a few sentences to act on, each with its numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from inlay.comparison import significance
from inlay.comparison.baselines import MAJORITY, TFIDF
from inlay.comparison.table import Dataset, Line
from inlay.metrics import LOWER_IS_BETTER

CLOSE = 0.01
"""A point: a loss that is worth taking for something much smaller."""
FEWER = 4
"""A method with this many times fewer parameters is worth a sentence."""


def conclusions(lines: Sequence[Line], datasets: Sequence[Dataset]) -> list[str]:
    """Sentences, the most important first."""
    best = next((line for line in lines if line.is_best), None)
    if best is None:
        return ["nothing was run on every dataset, so nothing can be compared"]
    metric = datasets[0].metric
    close = CLOSE if metric not in LOWER_IS_BETTER else CLOSE * abs(best.average or 0.0)
    return [
        *_hardly_trained(lines, datasets),
        *_against_baselines(lines, best, metric, close),
        *_smallest_as_good(lines, best, metric, close),
        *_too_few_pairs(lines),
    ]


def gap(difference: float, metric: str) -> str:
    """A difference in points, or in the metric's own unit if less is better."""
    size = abs(difference)
    return f"{size:.4g} of {metric}" if metric in LOWER_IS_BETTER else f"{100 * size:.1f} points"


def _hardly_trained(lines: Sequence[Line], datasets: Sequence[Dataset]) -> list[str]:
    """Sentences about datasets on which most methods learned next to nothing: the table ranks something else there."""
    majority = next((line for line in lines if line.method == MAJORITY), None)
    trained = [line for line in lines if not line.is_baseline]
    sentences: list[str] = []
    if majority is None:
        return sentences
    for data in datasets:
        known = [line.cells[data.name].mean for line in trained if data.name in line.cells]
        common = majority.cells[data.name].mean if data.name in majority.cells else None
        if common is None or not known:
            continue
        sign, close = (-1, CLOSE * abs(common)) if data.metric in LOWER_IS_BETTER else (1, CLOSE)
        stuck = sum(sign * (value - common) <= close for value in known)
        if 2 * stuck > len(known):
            sentences.append(
                f"on {data.name}, {stuck} of {len(known)} methods are hardly better than the most common answer: give "
                "them more steps or other learning rates (--epochs, --grid lr=...) before you trust the rest"
            )
    return sentences


def _against_baselines(lines: Sequence[Line], best: Line, metric: str, close: float) -> list[str]:
    """Whether something simpler is enough."""
    by_name = {line.method: line for line in lines}
    majority, tfidf = by_name.get(MAJORITY), by_name.get(TFIDF)
    if best is majority:
        return ["nothing is better than the most common answer: more steps, other settings or other data are needed"]
    sentences = []
    if majority is not None and majority.verdict == "not distinguishable":
        sentences.append(f"{best.method} is not distinguishable from the most common answer ({_gap(majority, metric)})")
    if best is tfidf:
        return [*sentences, "TF-IDF with a linear model is the best: as trained here, no transformer is needed"]
    if tfidf is None or tfidf.difference is None or tfidf.average is None:
        return sentences
    if -tfidf.difference <= close:
        sentence = f"TF-IDF with a linear model is within {gap(tfidf.difference, metric)} of the best, {best.method}"
        return [*sentences, f"{sentence}: a transformer may not be needed"]
    if tfidf.verdict == "not distinguishable":
        sentence = f"TF-IDF with a linear model is not distinguishable from {best.method}"
        return [*sentences, f"{sentence} ({_gap(tfidf, metric)}): a transformer may not be needed"]
    return [*sentences, f"TF-IDF with a linear model is {gap(tfidf.difference, metric)} below {best.method}"]


def _smallest_as_good(lines: Sequence[Line], best: Line, metric: str, close: float) -> list[str]:
    """The smallest method that is as good, or nearly."""
    if best.is_baseline or sum(not line.is_baseline for line in lines) < 2:
        return []
    rivals = [
        line
        for line in lines
        if not line.is_baseline and not line.is_best and line.average is not None and line.difference is not None
        if 0 < FEWER * line.parameters <= best.parameters and -line.difference <= close and line.verdict != "worse"
    ]
    if not rivals:
        return [f"{best.method} is the best, and nothing much smaller comes near it"]
    small = min(rivals, key=lambda line: line.parameters)
    times = f"at 1/{round(best.parameters / small.parameters):,} of the parameters"
    if small.verdict == "not distinguishable":
        return [f"{small.method} is not distinguishable from {best.method} ({_gap(small, metric)}) {times}"]
    return [f"{small.method} is within {gap(small.difference or 0.0, metric)} of {best.method} {times}"]


def _too_few_pairs(lines: Sequence[Line]) -> list[str]:
    others = [line for line in lines if not line.is_best and line.pairs]
    short = [line for line in others if line.verdict == "cannot tell"]
    if not short:
        return []
    pairs, needed = statistics.median_low(line.pairs for line in short), significance.pairs_needed(len(others))
    noun, are = ("pair", "is") if pairs == 1 else ("pairs", "are")
    return [
        f"{pairs} {noun} of runs (datasets times seeds) {are} too few to tell {len(others) + 1} lines apart; "
        f"{needed} are needed (--seeds)"
    ]


def _gap(line: Line, metric: str) -> str:
    return f"{gap(line.difference or 0.0, metric)} below, p = {line.p or 0.0:.2g}"
