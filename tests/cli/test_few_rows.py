"""What `inlay train` says of data that is too small to trust a score on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inlay.cli.verdicts import few_to_validate


def data(rows: int) -> Any:
    return SimpleNamespace(validation=SimpleNamespace(examples=[None] * rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (1, "only one validation row: a share of them, such as accuracy, can be off by 50 points"),
        (10, "only 10 validation rows: a share of them, such as accuracy, can be off by 30 points"),
        (49, "only 49 validation rows: a share of them, such as accuracy, can be off by 15 points"),
    ],
)
def test_few_validation_rows_are_named_with_what_they_mean(rows, said):
    found = few_to_validate(data(rows))
    assert found.startswith(said)
    assert "--val FILE" in found
    assert "--val-size" in found


def test_enough_validation_rows_need_no_word():
    assert few_to_validate(data(50)) == ""
