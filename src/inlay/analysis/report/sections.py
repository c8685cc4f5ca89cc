"""The findings, as sections of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inlay import drawing
from inlay.analysis.report import calibration
from inlay.analysis.report.confusion import Confusion, confusion
from inlay.analysis.report.figure import inline
from inlay.analysis.report.mistakes import Mistake, mistakes
from inlay.analysis.report.page import Section, esc, marked, said, table
from inlay.analysis.report.predictions import Predictions

MANY = 12
"""Labels from which on a matrix is drawn small."""
_PAIRS = 12


def figures(*drawn: tuple[Any, str]) -> str:
    """Pictures beside each other where there is room: figures, and what each shows."""
    return "".join(f"<figure>{inline(figure, alt)}</figure>" for figure, alt in drawn)


def answers(asked: Predictions, where: str) -> list[Section]:
    """Everything about the answers to labelled rows."""
    sections = []
    if asked.task.kind == "classification":
        sections.append(Section("confusion", "Which labels it confuses", _confusion(asked)))
    elif asked.task.kind == "multilabel":
        sections.append(Section("labels", "Label by label", _labels(asked)))
    elif asked.task.kind == "tagging":
        sections.append(Section("tags", "Which tags it confuses", _tags(asked)))
    elif asked.task.kind == "regression":
        sections.append(Section("scatter", "True and predicted numbers", _scatter(asked)))
    found = mistakes(asked)
    if asked.task.kind != "mlm":
        title = "Furthest off" if asked.task.kind == "regression" else "Surest mistakes"
        sections.append(Section("mistakes", title, _mistakes(found, where)))
    if asked.decisions:
        sections.append(Section("calibration", "How sure it is", _calibration(asked)))
    return sections


def matrix(found: Confusion) -> str:
    """The confusion matrix: shades are shares of a row, so rare labels count as much as common ones."""
    labels, counts = found.labels, found.matrix
    is_many = len(labels) > MANY
    head = "".join(f"<th title='{esc(one)}'><div class='up'>{esc(one)}</div></th>" for one in labels)
    if not is_many and max(map(len, labels)) <= 8:
        head = "".join(f"<th>{esc(one)}</th>" for one in labels)
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
    told = esc(f"{gold}, answered {answer}: {n} of {total}")
    return f"<td{wrong} style='--a:{max(0.08, 0.75 * n / total):.2f}' title='{told}'>{n}</td>"


def _confusion(asked: Predictions) -> str:
    found = confusion([str(e.target) for e in asked.examples], [a["label"] for a in asked.answers], asked.labels)
    how = "<p class='soft'>Rows are true labels, columns are answers; shading shows the share of the row.</p>"
    parts = [how, matrix(found)]
    if len(found.labels) > 3:
        confused = [(gold, answer, n, found.rows_of(gold)) for gold, answer, n in found.confused(_PAIRS)]
        parts += ["<h3>Confused most</h3>", table(("right", "answered", "rows", "of"), confused, (2, 3))]
    parts += ["<h3>Label by label</h3>", _label_table((label, found.scores(label)) for label in found.labels)]
    return "\n".join(parts)


def _labels(asked: Predictions) -> str:
    lines = []
    for label in dict.fromkeys([*asked.labels, *sorted(asked.unknown)]):
        gold = ["yes" if label in (e.target or ()) else "no" for e in asked.examples]
        given = ["yes" if label in a["label"] else "no" for a in asked.answers]
        lines.append((label, confusion(gold, given, ("no", "yes")).scores("yes")))
    return _label_table(lines)


def _tags(asked: Predictions) -> str:
    pairs = [(e.target, a["tags"]) for e, a in zip(asked.examples, asked.answers, strict=True)]
    gold, given = ([tag for pair in pairs for tag in pair[side]] for side in (0, 1))
    found = confusion(gold, given, asked.labels)
    words = f"<p class='soft'>{len(gold):,} words; rows are true tags, columns are answers.</p>"
    scores = _label_table((label, found.scores(label)) for label in found.labels)
    return "\n".join([words, matrix(found), "<h3>Tag by tag</h3>", scores])


def _label_table(scores: Iterable[tuple[str, tuple[int, float, float, float]]]) -> str:
    rows = ((label, f"{count:,}", *(f"{score:.3f}" for score in own)) for label, (count, *own) in scores)
    return table(("label", "rows", "precision", "recall", "F1"), rows, (1, 2, 3, 4))


def _scatter(asked: Predictions) -> str:
    gold, given = [e.target for e in asked.examples], [a["value"] for a in asked.answers]
    figure, panel = drawing.single(width=3.8, height=3.4)
    ends = [min(*gold, *given), max(*gold, *given)]
    panel.plot(ends, ends, color="#7F7F7F", lw=1, ls="--")
    how = {"color": drawing.COLOURS[0], "alpha": max(0.15, min(0.7, 60 / len(gold))), "ls": "", "markersize": 4}
    panel.plot(gold, given, marker="o", markeredgewidth=0, **how)
    drawing.label(panel, "right number", "answer")
    return figures((figure, "predicted against true numbers"))


def _mistakes(found: Sequence[Mistake], where: str) -> str:
    if not found:
        return f"<p>None: every answer on {esc(where)} is right.</p>"
    return f"<ol class='list'>{''.join(_mistake(one) for one in found)}</ol>"


def _mistake(one: Mistake) -> str:
    pair = f"<p class='soft'>{esc(one.pair)}</p>" if one.pair else ""
    sure = [("sure", f"{one.sure:.3f}")] if one.sure is not None else [("off by", f"{one.off or 0:.3g}")]
    line = said([("answered", one.said), ("right", one.right), *sure, ("from", one.place)])
    return f"<li><p>{marked(one.text, one.span)}</p>{pair}{line}</li>"


def _calibration(asked: Predictions) -> str:
    found, raw = calibration.reliability(asked.decisions), calibration.reliability(asked.raw)
    temperature = getattr(asked.task, "temperature", None)
    what = {"multilabel": "decisions on labels", "tagging": "words", "qa": "answers"}.get(asked.task.kind, "answers")
    lines = [f"Over {found.count:,} {what}, the expected calibration error is <b>{found.ece:.3f}</b>."]
    if temperature is None:
        lines.append("This task has no temperature: scores are the head's own.")
    elif asked.raw is asked.decisions or raw == found:
        lines.append("Its temperature is 1: scores are the head's own.")
    else:
        way = "less sure" if temperature > 1 else "surer"
        lines.append(
            f"Logits are divided by a temperature of {temperature:g}, fitted on validation rows after training, which "
            f"makes it {way} without changing any answer; without it the error is {raw.ece:.3f}."
        )
    lines.append("On the dashed line, accuracy equals confidence. Grey bars count decisions.")
    drawn = figures((calibration.draw(found, raw), "reliability diagram"))
    return f"<p>{' '.join(lines)}</p>\n{drawn}"
