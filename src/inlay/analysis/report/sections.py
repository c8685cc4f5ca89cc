"""The results on labelled rows, as sections of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inlay import drawing
from inlay.analysis.report import calibration
from inlay.analysis.report.confusion import Confusion, confusion
from inlay.analysis.report.figure import inline
from inlay.analysis.report.mistakes import Mistake, mistakes
from inlay.analysis.report.page import Section, esc, marked, short_facts, table
from inlay.analysis.report.predictions import Predictions

MANY = 12
"""A matrix of more labels is drawn small."""
_PAIRS = 12


def figures(*drawn: tuple[Any, str]) -> str:
    """Figures, each with its description, beside each other if there is room."""
    return "".join(f"<figure>{inline(figure, alt)}</figure>" for figure, alt in drawn)


def answers(predictions: Predictions, where: str) -> list[Section]:
    """Everything about the answers to labelled rows."""
    sections = []
    if predictions.task.kind == "classification":
        sections.append(Section("confusion", "Which labels it confuses", _confusion(predictions)))
    elif predictions.task.kind == "multilabel":
        sections.append(Section("labels", "Label by label", _labels(predictions)))
    elif predictions.task.kind == "tagging":
        sections.append(Section("tags", "Which tags it confuses", _tags(predictions)))
    elif predictions.task.kind == "regression":
        sections.append(Section("scatter", "True and predicted numbers", _scatter(predictions)))
    if predictions.task.kind != "mlm":
        title = "Furthest off" if predictions.task.kind == "regression" else "Surest mistakes"
        sections.append(Section("mistakes", title, _mistakes(mistakes(predictions), where)))
    if predictions.decisions:
        sections.append(Section("calibration", "How sure it is", _calibration(predictions)))
    return sections


def matrix(tally: Confusion) -> str:
    """The confusion matrix; shades are shares of a row, so that rare labels are seen as well as common ones."""
    labels, counts = tally.labels, tally.matrix
    is_many = len(labels) > MANY
    head = "".join(f"<th title='{esc(label)}'><div class='up'>{esc(label)}</div></th>" for label in labels)
    if not is_many and max(map(len, labels)) <= 8:
        head = "".join(f"<th>{esc(label)}</th>" for label in labels)
    lines = []
    for gold, row in zip(labels, counts, strict=True):
        total = sum(row)
        cells = "".join(_cell(gold, answer, n, total) for answer, n in zip(labels, row, strict=True))
        lines.append(f"<tr><th title='{esc(gold)}'>{esc(gold)}</th>{cells}</tr>")
    kind = "matrix many" if is_many else "matrix"
    body = f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class='wide'><table class='{kind}'>{body}</table></div>"


def _cell(gold: str, answer: str, n: int, total: int) -> str:
    if not n:
        return "<td></td>"
    wrong = " class='m'" if gold != answer else ""
    text = esc(f"{gold}, answered {answer}: {n} of {total}")
    return f"<td{wrong} style='--a:{max(0.08, 0.75 * n / total):.2f}' title='{text}'>{n}</td>"


def _confusion(predictions: Predictions) -> str:
    gold, answered = [str(e.target) for e in predictions.examples], [a["label"] for a in predictions.answers]
    tally = confusion(gold, answered, predictions.labels)
    legend = "<p class='soft'>Rows are true labels, columns are answers; shading shows the share of the row.</p>"
    parts = [legend, matrix(tally)]
    if len(tally.labels) > 3:
        confused = [(gold, answer, n, tally.rows_of(gold)) for gold, answer, n in tally.confused(_PAIRS)]
        parts += ["<h3>Confused most</h3>", table(("right", "answered", "rows", "of"), confused, (2, 3))]
    parts += ["<h3>Label by label</h3>", _label_table((label, tally.scores(label)) for label in tally.labels)]
    return "\n".join(parts)


def _labels(predictions: Predictions) -> str:
    lines = []
    for label in dict.fromkeys([*predictions.labels, *sorted(predictions.unknown)]):
        gold = ["yes" if label in (e.target or ()) else "no" for e in predictions.examples]
        answered = ["yes" if label in a["label"] else "no" for a in predictions.answers]
        lines.append((label, confusion(gold, answered, ("no", "yes")).scores("yes")))
    return _label_table(lines)


def _tags(predictions: Predictions) -> str:
    pairs = [(e.target, a["tags"]) for e, a in zip(predictions.examples, predictions.answers, strict=True)]
    gold, answered = ([tag for pair in pairs for tag in pair[side]] for side in (0, 1))
    tally = confusion(gold, answered, predictions.labels)
    words = f"<p class='soft'>{len(gold):,} words; rows are true tags, columns are answers.</p>"
    scores = _label_table((label, tally.scores(label)) for label in tally.labels)
    return "\n".join([words, matrix(tally), "<h3>Tag by tag</h3>", scores])


def _label_table(scores: Iterable[tuple[str, tuple[int, float, float, float]]]) -> str:
    rows = ((label, f"{count:,}", *(f"{score:.3f}" for score in of_label)) for label, (count, *of_label) in scores)
    return table(("label", "rows", "precision", "recall", "F1"), rows, (1, 2, 3, 4))


def _scatter(predictions: Predictions) -> str:
    gold, answered = [e.target for e in predictions.examples], [a["value"] for a in predictions.answers]
    figure, panel = drawing.single(width=3.8, height=3.4)
    ends = [min(*gold, *answered), max(*gold, *answered)]
    panel.plot(ends, ends, color="#7F7F7F", lw=1, ls="--")
    style = {"color": drawing.COLOURS[0], "alpha": max(0.15, min(0.7, 60 / len(gold))), "ls": "", "markersize": 4}
    panel.plot(gold, answered, marker="o", markeredgewidth=0, **style)
    drawing.label(panel, "right number", "answer")
    return figures((figure, "predicted against true numbers"))


def _mistakes(mistakes: Sequence[Mistake], where: str) -> str:
    if not mistakes:
        return f"<p>None: every answer on {esc(where)} is right.</p>"
    return f"<ol class='list'>{''.join(_mistake(mistake) for mistake in mistakes)}</ol>"


def _mistake(mistake: Mistake) -> str:
    pair = f"<p class='soft'>{esc(mistake.pair)}</p>" if mistake.pair else ""
    sure = [("sure", f"{mistake.sure:.3f}")] if mistake.sure is not None else [("off by", f"{mistake.off or 0:.3g}")]
    line = short_facts([("answered", mistake.said), ("right", mistake.right), *sure, ("from", mistake.place)])
    return f"<li><p>{marked(mistake.text, mistake.span)}</p>{pair}{line}</li>"


def _calibration(predictions: Predictions) -> str:
    served, raw = calibration.reliability(predictions.decisions), calibration.reliability(predictions.raw)
    temperature = getattr(predictions.task, "temperature", None)
    noun = {"multilabel": "decisions on labels", "tagging": "words"}.get(predictions.task.kind, "answers")
    lines = [f"Over {served.count:,} {noun}, the expected calibration error is <b>{served.ece:.3f}</b>."]
    if temperature is None:
        lines.append("This task has no temperature: scores are the head's own.")
    elif predictions.raw is predictions.decisions or raw == served:
        lines.append("Its temperature is 1: scores are the head's own.")
    else:
        change = "less sure" if temperature > 1 else "surer"
        lines.append(
            f"Logits are divided by a temperature of {temperature:g}, fitted on validation rows after training, which "
            f"makes it {change} without changing any answer; without it the error is {raw.ece:.3f}."
        )
    lines.append("On the dashed line, accuracy equals confidence. Grey bars count decisions.")
    drawn = figures((calibration.draw(served, raw), "reliability diagram"))
    return f"<p>{' '.join(lines)}</p>\n{drawn}"
