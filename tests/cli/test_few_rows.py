"""What `inlay train` says of data that is too small to trust a score on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inlay.tracking.progress import few_to_validate


def data(rows: int, folds: tuple[int, ...] = (), fold: str | None = None) -> Any:
    run = SimpleNamespace(fold=fold)
    return SimpleNamespace(validation=SimpleNamespace(examples=[None] * rows), folds=folds, run=run)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (1, "Only one validation row: the standard error of an accuracy is up to 50 points, so ±50 points may be luck"),
        (
            10,
            "Only 10 validation rows: the standard error of an accuracy is up to 16 points, so ±30 points may be luck",
        ),
        (49, "Only 49 validation rows: the standard error of an accuracy is up to 7 points, so ±15 points may be luck"),
    ],
)
def test_few_validation_rows_are_named_with_what_they_mean(rows, said):
    found = few_to_validate(data(rows))
    assert found.startswith(said)
    assert "--val or" in found
    assert "--val-size" in found


def test_with_folds_all_rows_count():
    found = few_to_validate(data(25, (1, 2)))
    assert found.startswith(
        "25 rows, each scored by a fold that has not seen it: the standard error of an accuracy is up to 10"
    )
    assert "--val" not in found
    assert few_to_validate(data(25, fold="1/3")).endswith("Use --val for more.")  # a size is refused there


def test_enough_validation_rows_need_no_word():
    assert few_to_validate(data(50)) == ""
