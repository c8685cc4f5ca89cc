"""Three parts of one file: test rows first, the same for every seed; then validation rows; the rest is trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from training import work

import inlay
from inlay.data.split import for_test
from inlay.errors import RunError
from inlay.runs.inputs import check
from inlay.runs.prepare import prepare


def parts(rows: Any, **settings: Any) -> list[list[str]]:
    data = prepare(inlay.Run(data=rows, epochs=1, **settings), work.host())
    assert data.test is not None
    return [[e.shown() for e in part.examples] for part in (data.train, data.validation, data.test)]


def numbered(n: int, classes: int = 2) -> list[dict[str, Any]]:
    return [{**row, "text": f"{row['text']} {i}"} for i, row in enumerate(work.texts(n, classes=classes))]


def test_shares_are_of_all_rows_and_no_row_is_in_two_parts():
    found = parts(numbered(100), test_size="10%", val_size="10%")
    assert [len(part) for part in found] == [80, 10, 10]
    assert len({text for part in found for text in part}) == 100
    assert [len(part) for part in parts(numbered(100), test_size=30)] == [60, 10, 30]
    assert [len(part) for part in parts(numbered(100), test_size=0.2, val_size=7, train_size="50%")] == [50, 7, 20]


def test_every_seed_has_the_same_test_rows_and_validation_rows_of_its_own():
    found = [parts(numbered(60), test_size=12, val_size=12, seed=seed) for seed in range(3)]
    assert len({tuple(test) for *_, test in found}) == 1
    assert len({tuple(validation) for _, validation, _ in found}) == 3


def test_classes_are_in_proportion_unless_they_are_not_wanted_to_be():
    rows = numbered(90, classes=3)
    labels = {row["text"]: row["label"] for row in rows}
    *_, test = parts(rows, test_size=30)
    assert set(Counter(labels[text] for text in test).values()) == {10}
    *_, test = parts(rows, test_size=30, stratify=False)
    assert set(Counter(labels[text] for text in test).values()) != {10}


def test_a_text_that_is_there_twice_is_in_one_part():
    rows = [row for row in numbered(30) for _ in range(2)]
    train, validation, test = parts(rows, test_size=12, val_size=12)
    assert not set(train) & set(test)
    assert not set(validation) & set(test)
    assert len(test) == 12


def test_a_class_of_one_row_is_trained_on():
    rest, test = for_test(11, 5, ["a"] * 10 + ["b"], None)
    assert 10 in rest
    assert sorted([*rest, *test]) == list(range(11))


def test_beside_validation_rows_and_folds_of_their_own(tmp_path: Path):
    for name, rows in (("train", numbered(40)), ("dev", work.texts(12, 5))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [len(part) for part in parts(str(tmp_path), test_size="25%")] == [30, 12, 10]
    data = prepare(work.run(numbered(40), test_size=10, folds=3, val_size=None), work.host())
    assert data.test is not None
    assert (len(data.train.examples), len(data.folds), len(data.test.examples)) == (30, 3, 10)


def test_what_cannot_be(tmp_path: Path):
    rows = numbered(20)
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match=r"test_size='0\.\.5' is not valid: expected a number of rows"):
        inlay.Run(data="x", test_size="0..5")
    both = inlay.Run(data=str(tmp_path / "train.jsonl"), test=str(tmp_path / "test.jsonl"), test_size=4)
    with pytest.raises(RunError, match="both give test rows; leave out one of the two"):
        check(both)
    for data, settings, said in (
        (str(tmp_path), {"test_size": 4}, "has test rows of its own; leave out test_size"),
        (rows, {"test_size": 21}, "--test-size 21 is more than the 20 rows there are"),
        (rows, {"test_size": "95%"}, "--test-size 95% of 20 rows leaves fewer than 2"),
        (rows, {"test_size": 10, "val_size": "50%"}, "--val-size 50% takes all 10 rows and leaves none for training"),
        (rows, {"test_size": 10, "val_size": 12}, "--val-size 12 takes all 10 rows"),
        (rows[:1] * 9, {"test_size": 3}, "have only 1 different texts; expected 3"),
    ):
        with pytest.raises(RunError) as raised:
            parts(data, **settings)
        assert said in str(raised.value)


def test_the_score_on_test_rows_is_reported():
    (result,) = inlay.train(work.host(), [work.run(work.texts(60), test_size=20, epochs=1, val_size=8)])
    assert set(result.metrics) == {"validation", "test"}
    assert result.config["test_size"] == 20
