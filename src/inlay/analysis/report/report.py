"""A report on an adapter: its card, how it was trained, and how good it is on labelled rows.

Without rows, the sections that need them are left out, and a sentence says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.analysis.report import calibration, layers, sections, training
from inlay.analysis.report.mistakes import mistakes
from inlay.analysis.report.page import Section, code, esc, facts, page, table, tiles
from inlay.analysis.report.predictions import Predictions, predict
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library import card_facts as known
from inlay.library import card_text
from inlay.library.adapter import Adapter
from inlay.library.cards import Entry
from inlay.library.ensemble import Ensemble
from inlay.tasks import Example


@dataclass(frozen=True)
class Rows:
    """Labelled rows, and where they are from."""

    where: str
    examples: Sequence[Example]


@dataclass(frozen=True)
class Report:
    """A page, and its numbers."""

    html: str
    numbers: Mapping[str, Any]

    def write(self, path: str | Path) -> Path:
        """Write the page; the folder is made if it does not exist."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.html, encoding="utf-8", errors="replace")
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from None
        return path


def report(
    host: Host,
    name: str,
    adapter: Adapter | Ensemble,
    entry: Entry,
    rows: Rows | None,
    *,
    why: str = "",
    versions: Mapping[int, Sequence[str]] | None = None,
    library: str | None = None,
) -> Report:
    """A report on a loaded adapter.

    Args:
        name: the name under which it is loaded.
        rows: the rows to measure it on; None if there are none, for the reason `why`.
        versions: all versions of its name, with their aliases.
        library: where it is, if not in the default library.
    """
    predictions = None if rows is None or entry.card["head"] is None else predict(host, name, rows.examples)
    norms = layers.changes(host, name, adapter) if isinstance(adapter, Adapter) else {}
    weights = None if predictions is None or entry.members else layers.weights(host, name, predictions.rows)
    parts = [
        Section("card", "Card", _card(entry, versions or {})),
        Section("metrics", "Metrics", _metrics(entry, predictions, rows, why)),
        Section("training", "Training", _training(adapter)),
        *([] if predictions is None or rows is None else sections.answers(predictions, rows.where)),
        *([Section("layers", "Layer by layer", _layers(norms, weights))] if norms else []),
        Section("use", "How to use it", _use(entry, library)),
    ]
    html = page(f"{entry.ref}: report", _lead(entry), parts)
    return Report(html, _numbers(entry, predictions, rows, why, norms, weights))


def _lead(entry: Entry) -> str:
    card = entry.card
    aliases = "".join(f" <small>@{esc(alias)}</small>" for alias in entry.aliases)
    large = []
    if deciding := card_text.deciding(card):
        metric, split, value = deciding
        large.append((f"{value:.4f}", f"{metric}, {split}"))
    counts = card_text.section(card, "parameters")
    if isinstance(counts.get("adapter"), int):
        share = f", {known.share(card)} of the base" if known.share(card) else ""
        large.append((f"{counts['adapter']:,}", f"trained parameters{share}"))
    large.append((card_text.size(entry.size), "on disk, head included"))
    if (names := card_text.labels(card)) and card_text.kind(card) in ("classification", "multilabel", "tagging"):
        large.append((f"{len(names)}", "labels"))
    return f"<h1>{esc(entry.ref)}{aliases}</h1>\n<p>{esc(card_text.does(card))}.</p>\n{tiles(large)}"


def _card(entry: Entry, versions: Mapping[int, Sequence[str]]) -> str:
    groups = [known.what_it_is(entry), known.training(entry.card), known.lineage(entry, versions)]
    return facts(pair for group in groups for pair in group)


def _metrics(entry: Entry, predictions: Predictions | None, rows: Rows | None, why: str) -> str:
    scores_of: dict[str, Mapping[str, float]] = {
        f"{split}, when trained": v for split, v in card_text.metrics(entry.card).items()
    }
    notes = []
    if predictions is not None and rows is not None:
        scores_of = {**scores_of, f"{rows.where}, now ({len(rows.examples):,} rows)": predictions.metrics}
        if predictions.unknown:
            count, first = len(predictions.unknown), ", ".join(sorted(predictions.unknown)[:5])
            notes.append(f"It does not know {count} of their labels, so it always misses them: {first}.")
    else:
        notes.append(why or "It was not measured for this report.")
    if not scores_of:
        return f"<p>{esc(' '.join(notes))}</p>"
    deciding = entry.card.get("metric")
    names = dict.fromkeys(name for scores in scores_of.values() for name in scores)
    lines = [
        (
            f"{name} *" if name == deciding else name,
            *(f"{scores[name]:.4f}" if name in scores else "" for scores in scores_of.values()),
        )
        for name in names
    ]
    star = f"* {card_text.scored(entry.card)}. " if deciding in names else ""
    columns = ("", *scores_of)
    return f"{table(columns, lines, range(1, len(columns)))}\n<p class='soft'>{esc(star + ' '.join(notes))}</p>"


def _training(adapter: Adapter | Ensemble) -> str:
    history, metric = training.evaluations(adapter.about), str(adapter.about.get("metric"))
    if not history:
        return "<p>Its file has no evaluations.</p>"
    best = (adapter.about.get("best") or {}).get("step")
    if len(history) == 1:
        step, value = history[0]["step"], history[0]["metrics"][metric]
        return f"<p>One evaluation, after {esc(step)} steps: {esc(metric)} {value:.4f}.</p>"
    drawn = ((training.draw_losses(history), "losses by step"), (training.draw_metric(history, metric, best), metric))
    return f"<div class='pair'>{sections.figures(*drawn)}</div>"


def _layers(norms: layers.Norms, weights: Sequence[float] | None) -> str:
    text = "The norm of every layer's trained parameters minus their initial values: how far training moved it."
    drawn = [(layers.draw_norms(norms), "norm of what was learned in every layer")]
    if weights is not None:
        text += " Beside it the mean size of α, by which AdapterBias shifts a token."  # noqa: RUF001
        drawn.append((layers.draw_weights(weights), "mean weight of a token in every layer"))
    return f"<p>{esc(text)}</p>\n<div class='pair'>{sections.figures(*drawn)}</div>"


def _use(entry: Entry, library: str | None) -> str:
    card, name = entry.card, entry.name
    snippets = [("Command line", card_text.predict_command(card, name, library))]
    source = f'{card_text.library_expression(library)}.get("{name}")'
    snippets.append(("Python", card_text.snippet(card, source, name)))
    if body := _request(card, name):
        ask_it = f"curl -s localhost:8000/v1/predict -H 'content-type: application/json' -d '{body}'"
        snippets.append(("HTTP", f"inlay serve --tasks {name}{card_text.in_library(library)}\n{ask_it}"))
    return "\n".join(f"<h3>{esc(title)}</h3>{code(text)}" for title, text in snippets if text)


def _request(card: Mapping[str, Any], name: str) -> str:
    if card_text.kind(card) in ("", "mlm"):
        return ""
    request = {"text": "a text"}
    if card_text.kind(card) == "qa":
        request = {"question": "a question", "context": "a text"}
    elif card_text.reads_pairs(card):
        request = {"text": "a text", "pair": "another text"}
    return json.dumps({"requests": [{"task": name, **request}]})


def _numbers(
    entry: Entry,
    predictions: Predictions | None,
    rows: Rows | None,
    why: str,
    norms: layers.Norms,
    weights: Sequence[float] | None,
) -> dict[str, Any]:
    sure = None
    if predictions is not None and predictions.decisions:
        sure = {
            "temperature": getattr(predictions.task, "temperature", None),
            "as_served": calibration.reliability(predictions.decisions).document(),
            "without_temperature": calibration.reliability(predictions.raw).document(),
        }
    return {
        "name": entry.name,
        "version": entry.version,
        "rows": None if rows is None or predictions is None else {"from": rows.where, "count": len(rows.examples)},
        "without_rows": why or None,
        "metrics": None if predictions is None else predictions.metrics,
        "calibration": sure,
        "mistakes": [] if predictions is None else [mistake.document() for mistake in mistakes(predictions)],
        "layers": [{"layer": place, "part": part, "norm": norm} for (place, part), norm in norms.items()],
        "alpha": None if weights is None else list(weights),
    }
