"""Two adapters on the same rows: their metrics, whether these differ, where they disagree, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inlay import metrics
from inlay.analysis.report import calibration
from inlay.analysis.report.page import Section, esc, page, short_facts, table
from inlay.analysis.report.paired_tests import Difference, difference
from inlay.analysis.report.predictions import Predictions, predict, shown_answer, shown_target
from inlay.analysis.report.report import Report, Rows
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library import card_text
from inlay.library.cards import Entry
from inlay.tasks import Answer

MOST = 20


@dataclass(frozen=True)
class Subject:
    """One of the two adapters; each may have a base of its own."""

    host: Host
    name: str
    entry: Entry


def compare(a: Subject, b: Subject, rows: Rows) -> Report:
    """A report on two loaded adapters of one task."""
    kinds = [subject.host.task(subject.name).kind for subject in (a, b)]
    if kinds[0] != kinds[1]:
        raise RunError(f"{a.name} is for {kinds[0]} and {b.name} for {kinds[1]}: their answers cannot be compared")
    first, second = (predict(subject.host, subject.name, rows.examples) for subject in (a, b))
    gap = _difference(a.entry, first, second)
    apart = _disagreements(first, second)
    sections = [
        Section("metrics", "Metrics", _metrics(a, b, first, second, gap)),
        Section("sizes", "What they are", _sizes(a.entry, b.entry)),
        Section("disagreements", "Where they disagree", _listed(a, b, apart, first, second)),
    ]
    lead = (
        f"<h1>{esc(a.entry.ref)} and {esc(b.entry.ref)}</h1>\n"
        f"<p>Both on the same {len(rows.examples):,} rows: {esc(rows.where)}.</p>\n"
        f"<p><b>{esc(verdict(a, b, gap))}</b></p>"
    )
    numbers = {
        "names": [a.entry.ref, b.entry.ref],
        "rows": {"from": rows.where, "count": len(rows.examples)},
        "metrics": {"a": first.metrics, "b": second.metrics},
        "difference": gap.document(),
        "verdict": verdict(a, b, gap),
        "disagreements": len(apart),
        "sizes": {"a": _size(a.entry), "b": _size(b.entry)},
    }
    return Report(page(f"{a.entry.ref} and {b.entry.ref}: report", lead, sections), numbers)


def verdict(a: Subject, b: Subject, gap: Difference) -> str:
    """The conclusion, in a sentence."""
    if not gap.is_clear:
        interval = f"95 % interval {gap.low:+.4f} to {gap.high:+.4f}"
        return f"On these rows they cannot be told apart: {gap.metric} differs by {gap.value:+.4f} ({interval})."
    is_better = (gap.value > 0) != (gap.metric in metrics.LOWER_IS_BETTER)
    better, other = (b, a) if is_better else (a, b)
    by, low, high = abs(gap.value), *sorted((abs(gap.low), abs(gap.high)))
    interval = f"95 % interval {low:.4f} to {high:.4f}"
    return f"{better.entry.ref} is better than {other.entry.ref}: {gap.metric} differs by {by:.4f} ({interval})."


def _difference(entry: Entry, first: Predictions, second: Predictions) -> Difference:
    metric = str(entry.card.get("metric") or "")
    if metric not in first.metrics or metric not in second.metrics:
        metric = next(name for name in first.metrics if name in second.metrics)

    def scorer(predictions: Predictions) -> Callable[[Sequence[int]], float]:
        def score(numbers: Sequence[int]) -> float:
            examples = [predictions.examples[i] for i in numbers]
            answers = [predictions.answers[i] for i in numbers]
            return predictions.task.score(examples, answers, predictions.labels).get(metric, 0.0)

        return score

    right = None if first.right is None or second.right is None else (first.right, second.right)
    return difference(metric, (scorer(first), scorer(second)), len(first.examples), right)


def _metrics(a: Subject, b: Subject, first: Predictions, second: Predictions, gap: Difference) -> str:
    both = [name for name in first.metrics if name in second.metrics]
    lines = [
        (
            f"{name} *" if name == gap.metric else name,
            f"{first.metrics[name]:.4f}",
            f"{second.metrics[name]:.4f}",
            f"{second.metrics[name] - first.metrics[name]:+.4f}",
        )
        for name in both
    ]
    if first.decisions and second.decisions:
        error, other = (calibration.reliability(p.decisions).ece for p in (first, second))
        lines.append(("calibration error", f"{error:.4f}", f"{other:.4f}", f"{other - error:+.4f}"))
    text = (
        f"* decides: {gap.value:+.4f}, 95 % interval {gap.low:+.4f} to {gap.high:+.4f} "
        f"(paired bootstrap over rows, {gap.draws:,} draws)."
    )
    if gap.p is not None:
        text += (
            f" {gap.only_first:,} rows are right with {a.entry.ref} alone, {gap.only_second:,} with {b.entry.ref} "
            f"alone (McNemar's exact test: p = {gap.p:.3g})."
        )
    columns = ("", a.entry.ref, b.entry.ref, "difference")
    return f"{table(columns, lines, (1, 2, 3))}\n<p class='soft'>{esc(text)}</p>"


def _size(entry: Entry) -> dict[str, Any]:
    counts = card_text.section(entry.card, "parameters")
    return {"bytes": entry.size, "parameters": counts.get("adapter"), "share": card_text.share(entry.card)}


def _sizes(a: Entry, b: Entry) -> str:
    def shown(entry: Entry) -> list[str]:
        card, counts = entry.card, card_text.section(entry.card, "parameters")
        share, data = card_text.share(card), card_text.data_name(card)
        trained = counts.get("adapter")
        return [
            card_text.one_line(card["method"]),
            f"{trained:,}" if isinstance(trained, int) else "",
            "" if share is None else card_text.percent(share),
            card_text.size(entry.size),
            card_text.one_line(card_text.base_name(card)),
            card_text.one_line(data),
            card_text.one_line(card.get("data") or ""),
        ]

    names = ("method", "trained parameters", "share of the base", "on disk", "base", "data", "its hash")
    return table(("", a.ref, b.ref), zip(names, shown(a), shown(b), strict=True))


def _disagreements(first: Predictions, second: Predictions) -> list[tuple[float, int]]:
    """(how sure both are, row), the surest first; for numbers, how far apart they are."""
    kind, pairs = first.task.kind, enumerate(zip(first.answers, second.answers, strict=True))
    distances = [(apart, i) for i, pair in pairs if (apart := _distance(kind, *pair)) is not None]
    return sorted(distances, key=lambda item: (-item[0], item[1]))


def _distance(kind: str, answer: Answer, other: Answer) -> float | None:
    if kind == "regression":
        return float(abs(answer["value"] - other["value"])) or None
    if kind == "mlm":
        return None
    if kind == "tagging":
        wrong = sum(x != y for x, y in zip(answer["tags"], other["tags"], strict=True))
        return float(wrong) if wrong else None
    key = "answer" if kind == "qa" else "label"
    return None if answer[key] == other[key] else float(min(answer["score"], other["score"]))


def _listed(a: Subject, b: Subject, apart: Sequence[tuple[float, int]], first: Predictions, second: Predictions) -> str:
    kind, total = first.task.kind, len(first.examples)
    if kind == "mlm":
        return "<p>This task has no answers to compare.</p>"
    if not apart:
        return f"<p>Nowhere: all {total:,} answers are the same.</p>"
    order = {"regression": "The largest differences first.", "tagging": "Those with the most differing tags first."}
    count = "" if kind == "regression" else f"{len(apart):,} of {total:,} rows. "
    lead = f"<p>{esc(count + order.get(kind, 'The most confident first.'))}</p>"
    items = []
    for _, i in apart[:MOST]:
        example = first.examples[i]
        texts = [_with_score(kind, predictions.answers[i]) for predictions in (first, second)]
        answers = zip((a.entry.ref, b.entry.ref), texts, strict=True)
        right = [("right", shown_target(kind, example.target)), ("from", example.place)]
        pair = f"<p class='soft'>{esc((example.pair or '')[:400])}</p>" if example.pair else ""
        items.append(f"<li><p>{esc(example.shown()[:400])}</p>{pair}{short_facts([*answers, *right])}</li>")
    return f"{lead}<ol class='list'>{''.join(items)}</ol>"


def _with_score(kind: str, answer: Answer) -> str:
    text = shown_answer(kind, answer)
    return text if kind in ("regression", "tagging") else f"{text} ({answer['score']:.3f})"
