"""What `inlay train` says of data that is too small to trust a score on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inlay.tracking.progress import few_to_validate


def data(rows: int) -> Any:
    return SimpleNamespace(validation=SimpleNamespace(examples=[None] * rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (1, "Only one validation row: scores such as accuracy may be off by ±50 points"),
        (10, "Only 10 validation rows: scores such as accuracy may be off by ±30 points"),
        (49, "Only 49 validation rows: scores such as accuracy may be off by ±15 points"),
    ],
)
def test_few_validation_rows_are_named_with_what_they_mean(rows, said):
    found = few_to_validate(data(rows))
    assert found.startswith(said)
    assert "--val or" in found
    assert "--val-size" in found


def test_enough_validation_rows_need_no_word():
    assert few_to_validate(data(50)) == ""
