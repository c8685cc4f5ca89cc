"""Every score, in plain Python: each equals its reference (scikit-learn, scipy, seqeval, the SQuAD script).

Surprising: an undefined score (no entity anywhere, one class only, a constant side of a correlation) is 0.0, as in the
references; only scipy has nan for a constant side. Here nan comes only from values that are not finite, so that a run
that diverged never looks like one that scored. No rows at all is a RunError.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import eq, mul
from statistics import stdev

from inlay.errors import RunError, SpecError, suggest

LOWER_IS_BETTER = frozenset({"perplexity", "loss", "rmse", "mae"})

OF_TASK: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "matthews"),
    "mlm": ("perplexity",),
    "multilabel": ("f1_micro", "f1_macro", "accuracy"),
    "qa": ("f1", "exact"),
    "regression": ("spearman", "pearson", "rmse", "mae"),
    "tagging": ("accuracy", "f1", "precision", "recall"),
}
"""Task -> its metrics; by default the first decides."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def choose(available: Sequence[str], metric: str | None, task: str) -> str:
    """The metric that decides which epoch is best: `metric`, else the first."""
    name = metric or available[0]
    if name not in available:
        raise SpecError(f"unknown metric {name!r} for this {task} task. {suggest(name, available)}")
    return name


def better(name: str, new: float, old: float | None) -> bool:
    """Whether `new` beats `old`; a tie does not, nan never does, and any number beats nan or nothing."""
    if old is None or math.isnan(old):
        return not math.isnan(new)
    return new < old if name in LOWER_IS_BETTER else new > old


def classification(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], *, positive: str | None = None
) -> dict[str, float]:
    """Accuracy, F1 and Matthews; with two labels or `positive` also `f1`, of `positive` or else of the last label.

    Averages are over the labels that occur in `gold` or `predicted`, as scikit-learn's are.
    """
    rows = _rows(gold, predicted)
    if positive is not None and positive not in labels:
        raise SpecError(f"unknown positive label {positive!r}. {suggest(positive, labels)}")
    support, claimed = Counter(gold), Counter(predicted)
    hits = Counter(g for g, p in zip(gold, predicted, strict=True) if g == p)
    right = hits.total()
    f1 = {label: _f1(hits[label], claimed[label], support[label]) for label in support | claimed}
    scores = {
        "accuracy": right / rows,
        "f1_macro": math.fsum(f1.values()) / len(f1),
        "f1_micro": _f1(right, rows, rows),
        "f1_weighted": math.fsum(f1[label] * count for label, count in support.items()) / rows,
        "matthews": _matthews(right, rows, support, claimed),
    }
    if positive is not None or len(labels) == 2:
        scores["f1"] = f1.get(labels[-1] if positive is None else positive, 0.0)
    return scores


def multilabel(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str]
) -> dict[str, float]:
    """F1 over all decisions, F1 averaged over all `labels` (0.0 for one that never occurs), and whole rows right."""
    rows = _rows(gold, predicted)
    support, claimed, hits, exact = Counter[str](), Counter[str](), Counter[str](), 0
    for true, claims in zip(map(frozenset, gold), map(frozenset, predicted), strict=True):
        support.update(true)
        claimed.update(claims)
        hits.update(true & claims)
        exact += true == claims
    f1_of_label = [_f1(hits[label], claimed[label], support[label]) for label in labels]
    return {
        "f1_micro": _f1(hits.total(), claimed.total(), support.total()),
        "f1_macro": math.fsum(f1_of_label) / len(f1_of_label) if f1_of_label else 0.0,
        "accuracy": exact / rows,
    }


def regression(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """Spearman (ties share their mean rank), Pearson, and the errors; a constant side gives correlations of 0.0."""
    rows = _rows(gold, predicted)
    errors = [p - g for g, p in zip(gold, predicted, strict=True)]
    finite = all(map(math.isfinite, itertools.chain(gold, predicted)))
    return {
        "spearman": _pearson(_ranks(gold), _ranks(predicted)) if finite else math.nan,
        "pearson": _pearson(gold, predicted) if finite else math.nan,
        "rmse": math.hypot(*errors) / math.sqrt(rows),
        "mae": sum(map(abs, errors)) / rows,
    }


def tagging(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Accuracy over words; for entity tags also entity f1, precision and recall (micro, as in seqeval)."""
    _rows(gold, predicted)
    words = right = support = claimed = hits = 0
    for row, (gold_tags, tags) in enumerate(zip(gold, predicted, strict=True)):
        if len(gold_tags) != len(tags):
            raise ValueError(f"row {row} has {len(gold_tags)} gold tags and {len(tags)} predicted ones")
        words, right = words + len(gold_tags), right + sum(map(eq, gold_tags, tags))
        true, claims = set(entities(gold_tags)), set(entities(tags))
        support, claimed, hits = support + len(true), claimed + len(claims), hits + len(true & claims)
    if not words:
        raise RunError("there is nothing to score: no row has a word")
    scores = {"accuracy": right / words}
    if are_entity_tags(itertools.chain(*gold, *predicted)):
        scores["f1"] = _f1(hits, claimed, support)
        scores["precision"] = hits / claimed if claimed else 0.0
        scores["recall"] = hits / support if support else 0.0
    return scores


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether every tag is O or starts with B-, I-, E- or S-."""
    return all(tag == "O" or tag.startswith(("B-", "I-", "E-", "S-")) for tag in set(tags))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, last word + 1) of each entity; I- or E- without a start before it starts one."""
    spans: list[tuple[str, int, int]] = []
    place, kind, start = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        new_place, new_kind = tag[:1], tag[2:] or "_"
        breaks = place in "ESO" or new_place in "BSO" or kind != new_kind
        if breaks and place != "O":
            spans.append((kind, start, i))
        place, kind, start = new_place, new_kind, i if breaks else start
    return spans


def qa(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """F1 over words and exact match, the best over the gold answers, as SQuAD v1.1; no gold answer: v2, "" is right.

    As in v1.1, an answer that is all punctuation can be matched exactly and still has an F1 of 0.
    """
    rows = _rows(gold, predicted)
    f1, exact = 0.0, 0
    for answers, text in zip(gold, predicted, strict=True):
        answer = normalise_answer(text)
        if not any(map(str.strip, answers)):
            f1, exact = f1 + (not answer), exact + (not answer)
            continue
        gold_answers = {normalise_answer(a) for a in answers}
        exact += answer in gold_answers
        bag, bags = Counter(answer.split()), [Counter(a.split()) for a in gold_answers]
        f1 += max(_f1((bag & other).total(), bag.total(), other.total()) for other in bags)
    return {"f1": f1 / rows, "exact": exact / rows}


def normalise_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without a, an, the; single spaces. In this order, as in SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def perplexity(mean_loss: float) -> float:
    """exp(loss); infinite above a loss of 700, where exp would soon overflow."""
    return math.inf if mean_loss > 700 else math.exp(mean_loss)


def summary(values: Sequence[float], *, lower_is_better: bool = False) -> dict[str, float]:
    """Over seeds: n, mean, std (with n - 1; 0.0 for one value), standard error of the mean, and the best."""
    n = _rows(values, values)
    mean, std = _mean_std(values)
    numbers = [value for value in values if not math.isnan(value)] or values
    best = min(numbers) if lower_is_better else max(numbers)
    return {"n": n, "mean": mean, "std": std, "sem": std / math.sqrt(n), "best": best}


def sample_std(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; None for a single one."""
    return stdev(values) if len(values) > 1 else None


def paired_interval(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean of a - b, and the low and high end of its paired t interval; one pair gives an infinite interval."""
    n = _rows(a, b)
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")
    mean, std = _mean_std([x - y for x, y in zip(a, b, strict=True)])
    half = _t_quantile(level, n - 1) * std / math.sqrt(n) if n > 1 else math.inf
    return mean, mean - half, mean + half


def _rows(gold: Sequence[object], predicted: Sequence[object]) -> int:
    if len(gold) != len(predicted):
        raise ValueError(f"the two sides differ in length: {len(gold)} and {len(predicted)}")
    if not len(gold):
        raise RunError("there is nothing to score: no rows")
    return len(gold)


def _f1(hits: int, claimed: int, support: int) -> float:
    return 2 * hits / (claimed + support) if hits else 0.0


def _matthews(right: int, rows: int, support: Counter[str], claimed: Counter[str]) -> float:
    """The multi-class form (Gorodkin, 2004), in whole numbers up to the last line."""
    chance = sum(count * claimed[label] for label, count in support.items())
    spread = (rows**2 - sum(n * n for n in support.values())) * (rows**2 - sum(n * n for n in claimed.values()))
    return (right * rows - chance) / math.sqrt(spread) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    ranks = [0.0] * len(values)
    start = 0
    for _, tied in itertools.groupby(sorted(range(len(values)), key=values.__getitem__), key=values.__getitem__):
        group = list(tied)
        for i in group:
            ranks[i] = start + (len(group) + 1) / 2
        start += len(group)
    return ranks


def _pearson(x: Sequence[float], y: Sequence[float]) -> float:
    if min(x) == max(x) or min(y) == max(y):
        return 0.0
    u, v = _centred(x), _centred(y)
    r = math.fsum(map(mul, u, v)) / (math.hypot(*u) * math.hypot(*v))
    return max(-1.0, min(1.0, r))


def _centred(values: Sequence[float]) -> list[float]:
    """Minus the mean, at most 1 in size, so that no square overflows or vanishes."""
    mean = math.fsum(values) / len(values)
    size = max(abs(value - mean) for value in values)
    return [(value - mean) / size for value in values]


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    if min(values) == max(values):  # a rounded mean must not give equal values a spread
        return values[0], 0.0
    mean = sum(values) / len(values)  # not fsum, which raises on infinities of both signs
    return mean, math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)


def _t_quantile(level: float, freedom: int) -> float:
    """The t with P(|T| < t) = level, by bisection: slow, sure, and right to the last digits."""

    def within(t: float) -> float:
        total = freedom + t * t
        return _beta(0.5, freedom / 2, t * t / total, freedom / total)

    low, high = 0.0, 1.0
    while within(high) < level:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if within(middle) < level else (low, middle)
    return high


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b); rest = 1 - x is a parameter to keep its digits."""
    if x <= (a + 1) / (a + b + 2):  # beyond this the fraction converges slowly
        return _beta_fraction(a, b, x, rest)
    return 1 - _beta_fraction(b, a, rest, x)


def _beta_fraction(a: float, b: float, x: float, rest: float) -> float:
    """The continued fraction of I_x(a, b): scale/(1 + d1/(1 + d2/(1 + ...))), by Lentz's method (DLMF 8.17.22)."""
    if not x:
        return 0.0
    scale = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    value, up, down, m, step = 1.0, 1.0, 0.0, 0, 0.0
    while abs(step - 1) > 1e-14:
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        for d in (odd, even):
            up, down = 1 + d / up, 1 / (1 + d * down)
            step = up * down
            value *= step
    return math.exp(scale) / value
