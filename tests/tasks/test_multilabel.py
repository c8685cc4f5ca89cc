"""Several labels against plain numbers and scipy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.errors import DataError
from inlay.tasks import Example, Row, parse

TASK = parse("multilabel")
BASE: Any = None


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a|b", ("a", "b")),
        ("b; a , b|c ", ("b", "a", "c")),
        ("", ()),
        (" | ", ()),
        (None, ()),
        ([], ()),
        (["b", " a ", "b"], ("b", "a")),
        (["a", "", None, " "], ("a",)),
        ([2, 10], ("2", "10")),
    ],
)
def test_labels_of_a_record(value, expected):
    assert TASK.read(Record({"t": "good", "y": value}, "f:1"), Columns(text="t", label="y")).target == expected


def test_targets_are_in_the_order_of_the_labels():
    examples = [Example("good", target=t) for t in (("10", "2"), (), ("x",))]
    labels = TASK.labels(examples)
    assert labels == ("2", "10", "x")
    rows = TASK.encode(tiny.tokenizer(), examples, labels, 20)
    assert [row.target for row in rows] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_no_label_at_all():
    with pytest.raises(DataError, match="f:1: no row has any label"):
        TASK.labels([Example("good", target=(), place="f:1")])


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.5]])
def test_loss(weights):
    logits = [[0.3, -2.0, 5.0], [-1.0, 0.1, 0.0]]
    targets = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    w = weights or [1.0] * 3
    each = [
        -w[k] * math.log(sigmoid(x if y else -x))
        for row, ys in zip(logits, targets, strict=True)
        for k, (x, y) in enumerate(zip(row, ys, strict=True))
    ]
    rows = [Row([1], target=y) for y in targets]
    given = None if weights is None else torch.tensor(weights)
    found = TASK.loss([torch.tensor(row) for row in logits], rows, BASE, given)
    assert found.item() == pytest.approx(sum(each) / 6, rel=1e-5)


def test_answer_has_every_label_from_the_cutoff_on():
    task = parse("multilabel:cutoff=0.7,temperature=2")
    logits = [torch.tensor([2.0, -4.0, 6.0]), torch.tensor([0.0, -4.0, 2.0])]  # two windows: 1, -4, 4
    answer = task.decode(logits, [], Example(""), ("x", "y", "z"), BASE)
    assert answer["label"] == ["z"]
    assert list(answer["scores"].values()) == pytest.approx([sigmoid(0.5), sigmoid(-2), sigmoid(2)])
    assert answer["score"] == pytest.approx(1 - sigmoid(0.5))  # x was the closest call
    every = parse("multilabel:cutoff=0").decode(logits, [], Example(""), ("x", "y", "z"), BASE)
    assert every["label"] == ["x", "y", "z"]


def test_temperature():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(150, 3, generator=random) * 5
    targets = (torch.rand(150, 3, generator=random) < (logits / 3).sigmoid()).float()
    found = TASK.calibrate([[row] for row in logits], [[Row([1], target=y)] for y in targets.tolist()])

    def loss(log_t: float) -> float:
        signed = torch.where(targets > 0, logits, -logits).double() / math.exp(log_t)
        return 450 * torch.logaddexp(-signed, torch.zeros(())).mean().item() - norm(0, 0.5).logpdf(log_t)

    oracle = minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded", options={"xatol": 1e-8})
    assert found.temperature == pytest.approx(math.exp(oracle.x), rel=1e-3)
    assert found.temperature == pytest.approx(3, rel=0.3)
