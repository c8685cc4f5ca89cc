"""The parts of a report against oracles: scikit-learn, scipy, and sums by hand."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import cast

import pytest
from scipy.stats import binomtest
from sklearn import metrics as oracle

from inlay.analysis.report.calibration import reliability
from inlay.analysis.report.compare import Subject, verdict
from inlay.analysis.report.confusion import confusion
from inlay.analysis.report.mistakes import _around
from inlay.analysis.report.page import esc, marked, page, table
from inlay.analysis.report.paired_tests import Difference, difference, mcnemar
from inlay.analysis.report.sections import matrix
from inlay.library.card_text import shortened


def drawn(labels: int, rows: int = 400):
    draw = random.Random(labels)
    names = [f"label {i}" for i in range(labels)]
    gold = [draw.choice(names) for _ in range(rows)]
    return names, gold, [g if draw.random() < 0.6 else draw.choice(names) for g in gold]


@pytest.mark.parametrize("labels", [2, 5, 77])
def test_the_matrix_and_the_scores_are_scikit_learns(labels: int):
    names, gold, said = drawn(labels)
    found = confusion(gold, said, names)
    assert found.matrix == oracle.confusion_matrix(gold, said, labels=names).tolist()
    each = oracle.precision_recall_fscore_support(gold, said, labels=names, zero_division=0)
    for i, name in enumerate(names):
        rows, *scores = found.scores(name)
        assert rows == each[3][i]
        assert scores == pytest.approx([each[k][i] for k in range(3)])
    shown = matrix(found)
    assert shown.count("<tr>") == labels + 1
    assert shown.count("<td") == labels**2
    assert sum(int(n) for n in re.findall(r">(\d+)</td>", shown)) == 400


def test_labels_that_nobody_told_it_of_have_a_row():
    found = confusion(["a", "new"], ["a", "b"], ["a", "b"])
    assert found.labels == ("a", "b", "new")
    assert found.matrix == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert found.confused(5) == [("new", "b", 1)]


def test_the_calibration_error_by_hand():
    # (0.9, 1.0]: 0.95 and 0.99, one right; (0.5, 0.6]: 0.6 twice, both right; (0.0, 0.1]: 0.0, wrong
    decisions = [(0.95, True), (0.99, False), (0.6, True), (0.6, True), (0.0, False)]
    found = reliability(decisions)
    assert [(one.low, one.count) for one in found.bins] == [(0.0, 1), (0.5, 2), (0.9, 2)]
    assert found.ece == pytest.approx(2 / 5 * abs(0.97 - 0.5) + 2 / 5 * abs(0.6 - 1) + 0)
    assert reliability([(1.0, True)] * 3).ece == 0.0
    assert reliability([]).count == 0


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), (1, 9), (30, 12), (400, 460)])
def test_mcnemar_is_scipys_binomial_test(first: int, second: int):
    expected = binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(expected)


def test_the_bootstrap_finds_a_difference_and_none():
    draw = random.Random(0)
    good = [draw.random() < 0.9 for _ in range(400)]
    poor = [draw.random() < 0.6 for _ in range(400)]

    def accuracy(right):
        return lambda numbers: sum(right[i] for i in numbers) / len(numbers)

    found = difference("accuracy", (accuracy(poor), accuracy(good)), 400, (poor, good))
    assert found.value == pytest.approx((sum(good) - sum(poor)) / 400)
    assert found.low < found.value < found.high
    assert found.is_clear
    assert found.p is not None
    assert found.p < 1e-6
    # about two standard errors on either side
    spread = (sum((g - p - found.value) ** 2 for g, p in zip(good, poor, strict=True)) / 400 / 400) ** 0.5
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * spread, rel=0.15)
    same = difference("accuracy", (accuracy(good), accuracy(good)), 400, None)
    assert (same.value, same.low, same.high, same.is_clear, same.p) == (0.0, 0.0, 0.0, False, None)


def test_everything_is_escaped():
    bad = "<script>alert('x')</script>&\""
    for made in (esc(bad), table((bad,), [(bad,)]), marked(bad, (1, 7)), page(bad, "", [])):
        assert "<script" not in made
    assert marked("a<b>c", (1, 4)) == "a<mark>&lt;b&gt;</mark>c"
    shown = matrix(confusion([bad], ["'><b>"], ["'><b>"]))
    assert "<script" not in shown
    assert "<b>" not in shown


def test_long_texts_are_cut():
    assert shortened("x" * 400, 400) == "x" * 400
    assert len(shortened("x" * 401, 400)) == 400
    text = "a" * 500 + "HERE" + "b" * 500
    assert "HERE" in _around(text, 500)
    assert _around(text, 1003).endswith("b")


@pytest.mark.parametrize("values", [(-0.1525, -0.2542, -0.0508), (0.1525, 0.0508, 0.2542)])
def test_an_interval_has_the_sign_of_its_difference(values: tuple[float, float, float]):
    a, b = (cast(Subject, SimpleNamespace(entry=SimpleNamespace(ref=ref))) for ref in ("a@1", "b@1"))
    better = "a@1 is better than b@1" if values[0] < 0 else "b@1 is better than a@1"
    said = verdict(a, b, Difference("accuracy", *values, 1000, None, None, None))
    assert said == f"{better}: accuracy differs by 0.1525 (95 % interval 0.0508 to 0.2542)."
