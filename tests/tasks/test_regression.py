"""Numbers: standardised for the head, on the scale of the data for everyone else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from inlay.errors import DataError
from inlay.tasks import Example, parse

TARGETS = [3.0, -1.5, 0.25, 4.75, 12.0]
BASE: Any = None


def examples() -> list[Example]:
    return [Example("good", target=t, place=f"f:{i}") for i, t in enumerate(TARGETS, 1)]


def test_mean_and_deviation_come_from_the_training_data():
    task = parse("regression").fit(examples())
    assert (task.mean, task.scale) == pytest.approx((np.mean(TARGETS), np.std(TARGETS)), abs=1e-6)
    rows = task.encode(tiny.tokenizer(), examples(), ("value",), 20)
    found = np.array([row.target for row in rows])
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=1e-6)


def test_equal_targets_cannot_be_learned():
    with pytest.raises(DataError, match="f:1: every row has the same target"):
        parse("regression").fit([Example("a", target=2.0, place="f:1"), Example("b", target=2.0, place="f:2")])


def test_loss():
    task = parse("regression").fit(examples())
    rows = task.encode(tiny.tokenizer(), examples(), ("value",), 20)
    outputs = [0.5, -0.25, 0.0, 2.0, 1.0]
    standard = (np.array(TARGETS) - np.mean(TARGETS)) / np.std(TARGETS)
    found = task.loss([torch.tensor([v]) for v in outputs], rows, BASE)
    assert found.item() == pytest.approx(np.mean((outputs - standard) ** 2), rel=1e-5)


def test_a_right_answer_has_the_value_of_the_data():
    task = parse("regression").fit(examples())
    rows = task.encode(tiny.tokenizer(), examples(), ("value",), 20)
    answers = [task.decode([torch.tensor([r.target])], [r], e, (), BASE) for r, e in zip(rows, examples(), strict=True)]
    assert [a["value"] for a in answers] == pytest.approx(TARGETS, abs=1e-5)
    assert task.score(examples(), answers, ())["mae"] == pytest.approx(0, abs=1e-5)


def test_windows_are_averaged():
    answer = parse("regression:mean=10,scale=2").decode(
        [torch.tensor([1.0]), torch.tensor([4.0])], [], Example(""), (), BASE
    )
    assert answer == {"value": 15.0}


def test_numbers_that_are_large_and_close_together():
    """Dates in seconds: the mean needs the digits of the deviation, not its own."""
    some = [Example("good", target=1_712_345_678 + t) for t in TARGETS]
    task = parse(parse("regression").fit(some).spec)
    found = np.array([row.target for row in task.encode(tiny.tokenizer(), some, ("value",), 20)])
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=1e-5)


def test_the_loss_of_answers_is_in_the_units_of_the_data():
    task = parse("regression").fit(examples())
    rows = [[row] for row in task.encode(tiny.tokenizer(), examples(), ("value",), 20)]
    outputs = [[torch.tensor([value])] for value in (0.5, -0.25, 0.0, 2.0, 1.0)]
    values = [answer["value"] for answer in task.answers(outputs, rows, examples(), ("value",), BASE)]
    assert task.answer_loss(outputs, rows, BASE) == pytest.approx(np.mean((np.array(values) - TARGETS) ** 2))
