"""Splits: exact, disjoint, in proportion, the same for the same seed anywhere; groups never straddle."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.data.split import size, split, take
from inlay.errors import RunError

labels_of = st.lists(st.sampled_from("aaaaaaabbbccd"), min_size=2, max_size=120)
seeds = st.integers(0, 2**32)


@pytest.mark.parametrize(
    ("text", "rows", "count"),
    [
        ("1000", 5000, 1000),
        (" 7 ", 7, 7),
        (12, 12, 12),
        ("10%", 5574, 557),
        ("12.5 %", 80, 10),
        (0.1, 30, 3),
        ("0.1", 30, 3),
        (".5", 30, 15),
        (1e-05, 100_000, 1),
        ("100%", 9, 9),
        (1.0, 9, 9),
        (1, 9, 1),
        (None, 9, 9),
    ],
)
def test_size(text: str | int | float | None, rows: int, count: int):
    assert size(text, rows, "--train-size") == count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a size"),
        ("ten", "is not a size"),
        ("1,000", "is not a size"),
        ("1_0", "is not a size"),
        ("10%%", "is not a size"),
        (2.5, "is not a size"),
        ("1e99999999", "is not a size"),
        ("9" * 5000, "is not a size"),
        (float("nan"), "is not a size"),
        (-3, "is not a size"),
        (True, "is not a size"),
        (0, "is less than one row"),
        ("0%", "is less than one row"),
        ("1%", "is less than one row"),
        (21, "more than the 20 rows there are"),
        ("101%", "more than the 20 rows there are"),
    ],
)
def test_wrong_size(text: str | int | float, words: str):
    with pytest.raises(RunError, match=words) as caught:
        size(text, 20, "--train-size")
    assert str(caught.value).startswith(f"--train-size {text}")


@examples()
@given(st.data(), st.integers(1, 200), seeds)
def test_take_is_exact_and_ascending(data: st.DataObject, rows: int, seed: int):
    n = data.draw(st.integers(0, rows))
    found = take(rows, n, seed)
    assert len(found) == n
    assert found == sorted(set(found))
    assert set(found) <= set(range(rows))
    assert found == take(rows, n, seed)


@examples()
@given(st.data(), labels_of, seeds)
def test_take_keeps_classes_in_proportion(data: st.DataObject, labels: list[str], seed: int):
    n = data.draw(st.integers(0, len(labels)))
    found = Counter(labels[i] for i in take(len(labels), n, seed, labels))
    counts = Counter(labels)
    ideal = {label: Fraction(n * count, len(labels)) for label, count in counts.items()}
    assert found.total() == n
    if n >= len(counts):
        assert found.keys() == counts.keys()
    if n < len(counts) or min(ideal.values()) >= 1:
        assert all(abs(found[label] - ideal[label]) < 1 for label in counts)
    else:  # the rows that rare classes were given come from the others, none of which is above its share
        assert all(found[label] < ideal[label] + 1 for label in counts)


def test_a_rare_class_gets_its_row_from_the_large_ones():
    labels = ["a"] * 96 + ["b", "c", "d", "e"]
    assert Counter(labels[i] for i in take(100, 10, 0, labels)) == {"a": 6, "b": 1, "c": 1, "d": 1, "e": 1}
    # By largest remainder alone, there would be none of them: 9.6 of 10 are a.
    assert Counter(labels[i] for i in take(100, 3, 0, labels)) == {"a": 3}


def test_giving_to_rare_classes_makes_others_rare():
    labels = ["a"] * 28 + ["b"] * 9 + ["c"] * 4 + ["d"] * 3 + ["e"]
    # c, d and e get theirs first; b's share of the two left is then 18 / 37 of a row, a's 56 / 37.
    assert set(Counter(labels[i] for i in take(45, 5, 0, labels)).values()) == {1}


def test_the_draw_is_random_and_fair():
    hits = Counter(row for seed in range(2000) for row in take(10, 3, seed))
    assert len({tuple(take(10, 3, seed)) for seed in range(200)}) > 60  # of 120
    assert all(abs(hits[row] - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for row in range(10))


def test_train_sets_are_nested_and_validation_stays():
    parts = [split(500, 4, train_size=n, val_size=50, stratify=None) for n in (10, 100, 450)]
    assert set(parts[0][0]) < set(parts[1][0]) < set(parts[2][0])
    assert parts[0][1] == parts[1][1] == parts[2][1]


@examples()
@given(st.data(), labels_of, seeds, st.booleans())
def test_split(data: st.DataObject, labels: list[str], seed: int, stratified: bool):
    rows = len(labels)
    n_val = data.draw(st.integers(1, rows - 1))
    n_train = data.draw(st.none() | st.integers(1, rows - n_val))
    strata = labels if stratified else None
    train, validation = split(rows, seed, train_size=n_train, val_size=n_val, stratify=strata)
    assert not set(train) & set(validation)
    assert (len(train), len(validation)) == (rows - n_val if n_train is None else n_train, n_val)
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert (train, validation) == split(rows, seed, train_size=n_train, val_size=n_val, stratify=strata)
    if stratified and len(train) >= len(set(labels)):
        assert {labels[i] for i in train} == set(labels)


@examples()
@given(st.lists(st.integers(10, 60), min_size=1, max_size=5), seeds)
def test_both_parts_keep_classes_in_proportion(counts: list[int], seed: int):
    labels = [str(label) for label, count in enumerate(counts) for _ in range(count)]
    rows = len(labels)
    parts = split(rows, seed, val_size="20%", stratify=labels)
    for part in parts:
        found = Counter(labels[i] for i in part)
        assert all(abs(found[str(c)] - Fraction(len(part) * count, rows)) < 1 for c, count in enumerate(counts))


@examples()
@given(st.data(), labels_of, seeds, st.booleans())
def test_groups_never_straddle(data: st.DataObject, labels: list[str], seed: int, stratified: bool):
    rows = len(labels)
    groups = data.draw(st.lists(st.sampled_from([str(i) for i in range(30)]), min_size=rows, max_size=rows))
    n_train = data.draw(st.none() | st.integers(1, rows - 1))
    n_val = data.draw(st.integers(1, rows - (n_train or 1)))
    strata = labels if stratified else None

    def draw() -> tuple[list[int], list[int]]:
        return split(rows, seed, train_size=n_train, val_size=n_val, stratify=strata, groups=groups)

    if len(set(groups)) < 2:
        with pytest.raises(RunError, match="belong together"):
            draw()
        return
    train, validation = draw()
    assert train
    assert validation
    assert not {groups[i] for i in train} & {groups[i] for i in validation}
    if n_train is None:
        assert sorted(train + validation) == list(range(rows))
    sizes, class_of = Counter(groups), {g: labels[groups.index(g)] if stratified else "" for g in groups}
    several = Counter(class_of.values())
    smallest = min([sizes[g] for g in sizes if several[class_of[g]] > 1] or sizes.values())
    assert len(validation) <= max(n_val, smallest)


def test_groups_are_needed():
    """The control: without them, the same rows do straddle."""
    groups = [str(i // 2) for i in range(100)]
    train, validation = split(100, 0, val_size=20, stratify=None)
    assert {groups[i] for i in train} & {groups[i] for i in validation}
    train, validation = split(100, 0, val_size=20, stratify=None, groups=groups)
    assert (len(train), len(validation)) == (80, 20)


def test_a_class_with_one_text_is_trained_on():
    labels, texts = ["a"] * 10 + ["b"] * 30, ["one"] * 10 + ["two"] * 15 + ["three"] * 15
    train, _ = split(40, 0, val_size=4, stratify=labels, groups=texts)
    assert {labels[i] for i in train} == {"a", "b"}


def test_a_large_group_is_not_the_validation_set():
    train, validation = split(101, 0, val_size=10, stratify=None, groups=["same"] * 100 + ["other"])
    assert (len(train), validation) == (100, [100])


@pytest.mark.parametrize(("rows", "count"), [(2, 1), (3, 1), (100, 10), (5574, 557), (50_000, 2000)])
def test_default_validation(rows: int, count: int):
    train, validation = split(rows, 0, stratify=None)
    assert (len(train), len(validation)) == (rows - count, count)


def test_default_validation_takes_what_train_leaves():
    assert [len(part) for part in split(100, 0, train_size=30, stratify=None)] == [30, 10]
    assert [len(part) for part in split(100, 0, train_size="97%", stratify=None)] == [97, 3]


@pytest.mark.parametrize(
    ("rows", "sizes", "words"),
    [
        (1, {}, "at least 2 rows"),
        (0, {}, "at least 2 rows"),
        (10, {"train_size": 10}, "--train-size 10 takes all 10 rows and leaves none for validation"),
        (10, {"val_size": "100%"}, "--val-size 100% takes all 10 rows and leaves none for training"),
        (10, {"train_size": 8, "val_size": "30%"}, "--train-size 8 and --val-size 30% need 11 of 10 rows"),
    ],
)
def test_sizes_that_do_not_fit(rows: int, sizes: dict[str, str | int], words: str):
    with pytest.raises(RunError, match=words):
        split(rows, 0, stratify=None, train_size=sizes.get("train_size"), val_size=sizes.get("val_size"))


def test_labels_of_another_length():
    with pytest.raises(RunError, match="2 labels for 3 rows"):
        take(3, 1, 0, ["a", "b"])
    with pytest.raises(RunError, match="4 rows cannot be taken from 3"):
        take(3, 4, 0)


def test_pinned():
    """A split is part of what a stored run means: it must not change with a release."""
    assert take(20, 5, 0) == [2, 6, 8, 9, 14]
    assert split(12, 7, val_size=4, stratify=list("aabbccaabbcc")) == ([0, 2, 4, 5, 7, 8, 9, 11], [1, 3, 6, 10])


def test_independent_of_hash_seed_and_of_other_generators():
    here = split(300, 3, val_size=30, stratify=[str(i % 7) for i in range(300)])
    random.seed(1)
    torch.manual_seed(1)
    state = random.getstate(), torch.get_rng_state()
    assert here == split(300, 3, val_size=30, stratify=[str(i % 7) for i in range(300)])
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    code = "from inlay.data.split import split\n"
    code += "print(split(300, 3, val_size=30, stratify=[str(i % 7) for i in range(300)]))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == str(here)
