"""A look at the data: counts against brute force, weights against scikit-learn, and lines that people read."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.data.describe import Look, Text, class_weights, groups, histogram, lines, look
from inlay.data.split import split


def alone(*texts: str) -> list[Text]:
    return [(text, None) for text in texts]


def seen(texts: list[Text], labels: list[str] | None = None, **others: list[Text]) -> Look:
    return look(texts, labels, None, None, others)


def test_counts():
    found = look(
        alone("Good morning", "bad", "good  MORNING\n", "fine", "  "),
        ["b", "a", "c", "b", "b"],
        [4, 3, 4, 3, 2],
        3,
        {"validation": alone("fine!"), "test": alone("FINE", "new", "bad", "fine")},
    )
    assert found == Look(
        rows=5,
        labels={"b": 3, "a": 1, "c": 1},
        lengths=[(2, 2, 1), (3, 3, 2), (4, 4, 2)],
        longest=4,
        mean=3.2,
        max_length=3,
        over_long=2,
        duplicates_within=1,
        shared={"validation": 0, "test": 3},
        sizes={"validation": 1, "test": 4},
        conflicting=1,
        empty=1,
    )
    assert list(found.labels) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("Straße", "STRASSE"),
        ("\u01f0", "J\u030c"),
        ("\u0390", "\u03aa\u0301"),  # case folding takes the first apart, and not the second
        ("a\u00a0b", " a \t b "),
        ("two\nlines", "two lines"),
    ],
)
def test_the_same_text(one: str, other: str):
    assert seen(alone(one, other)).duplicates_within == 1
    assert seen(alone(one), test=alone(other)).shared == {"test": 1}


@pytest.mark.parametrize(("one", "other"), [("ab", "a b"), ("resume", "résumé"), ("x", "x."), ("²", "2")])
def test_another_text(one: str, other: str):
    assert seen(alone(one, other)).duplicates_within == 0


def test_pairs_are_compared_as_pairs():
    rows: list[Text] = [("a", "b"), ("b", "a"), ("a b", None), ("a\x1fb", None), ("a", None), ("A", "B")]
    found = seen(rows, ["x", "x", "x", "x", "x", "y"])
    assert found.duplicates_within == 2  # "a b" with its other white space, and the last row
    assert found.conflicting == 1
    assert seen([("a", " "), ("", "b"), ("a", "b"), ("", None)]).empty == 3


def test_a_conflict_is_counted_once_per_text():
    assert seen(alone("a", "a", "a", "b", "b"), ["1", "2", "3", "1", "1"]).conflicting == 1
    assert seen(alone("a", "a")).conflicting == 0


def test_blank_texts_are_no_duplicates_and_no_leak():
    found = seen(alone("", " ", "\n"), ["a", "b", "a"], test=alone(""))
    assert (found.empty, found.duplicates_within, found.conflicting, found.shared) == (3, 0, 0, {"test": 0})


@examples()
@given(st.lists(st.sampled_from(["a", "A ", "b", "c d", "C  D", "e"])), st.lists(st.sampled_from(["a", "b", "x"])))
def test_against_brute_force(train: list[str], test: list[str]):
    def folded(text: str) -> str:
        return " ".join(unicodedata.normalize("NFC", text).casefold().split())

    known = [folded(text) for text in train]
    found = seen(alone(*train), test=alone(*test))
    assert found.duplicates_within == sum(text in known[:i] for i, text in enumerate(known))
    assert found.shared["test"] == sum(folded(text) in known for text in test)


def test_groups_keep_the_same_texts_on_one_side():
    texts = alone(*(f"Text {i // 3}".upper() if i % 2 else f"text  {i // 3}" for i in range(90)))
    train, validation = split(90, 0, val_size=30, stratify=None, groups=groups(texts))
    assert len(set(groups(texts))) == 30
    assert seen([texts[i] for i in train], test=[texts[i] for i in validation]).shared == {"test": 0}
    train, validation = split(90, 0, val_size=30, stratify=None)
    assert seen([texts[i] for i in train], test=[texts[i] for i in validation]).shared["test"] > 0


@examples()
@given(st.lists(st.integers(1, 600), min_size=1), st.integers(1, 12))
def test_histogram(lengths: list[int], bins: int):
    found = histogram(lengths, bins)
    assert 1 <= len(found) <= bins
    assert (found[0][0], found[-1][1]) == (min(lengths), max(lengths))
    assert all(one[1] + 1 == two[0] for one, two in pairwise(found))
    assert len({to - start for start, to, _ in found[:-1]}) <= 1
    assert [count for _, _, count in found] == [sum(start <= n <= to for n in lengths) for start, to, _ in found]


def test_histogram_of_nothing_and_of_one_length():
    assert histogram([]) == []
    assert histogram([7, 7]) == [(7, 7, 2)]


def test_lines():
    found = Look(
        rows=5574,
        labels={"ham": 4827, "spam": 747},
        lengths=[(1, 10, 8), (11, 20, 4), (21, 30, 0), (31, 40, 1)],
        longest=40,
        mean=12.25,
        max_length=32,
        over_long=1,
        duplicates_within=415,
        shared={"validation": 0, "test": 12},
        sizes={"validation": 100, "test": 300},
        conflicting=1,
        empty=2,
    )
    assert lines(found) == [
        "5,574 rows, 2 classes",
        "  ham   4,827   86.6 %",
        "  spam    747   13.4 %",
        "tokens per text: 1 █▄ ▁ 40, mean 12.2",
        "1 text (0.0 %) is longer than 32 tokens",
        "2 texts are empty",
        "415 rows repeat the text of an earlier row",
        "1 text appears with more than one label",
        "12 of 300 test rows also appear in train",
    ]


def test_lines_of_clean_data_are_few():
    assert lines(seen(alone("a", "b"), ["x", "y"], test=alone("c"))) == [
        "2 rows, 2 classes",
        "  x  1   50.0 %",
        "  y  1   50.0 %",
    ]
    assert lines(seen(alone("a"))) == ["1 row"]
    assert lines(seen([])) == ["0 rows"]


def test_ten_classes_are_shown():
    found = lines(Look(rows=253, labels={f"class {i:02}": 22 - i for i in range(22)}))
    assert len(found) == 12
    assert found[1] == "  class 00  22    8.7 %"
    assert found[-1] == "  ... and 12 more"
    assert len(lines(Look(rows=10, labels={str(i): 1 for i in range(10)}))) == 11  # none more, so no such line


def test_any_label_stays_on_one_line():
    shown = lines(Look(rows=3, labels={"a\nb\x1b[31m": 2, "x" * 500: 1, "x" * 501: 1}))
    assert len(shown) == 4
    assert all(line.isprintable() and len(line) < 80 for line in shown)


@examples()
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50), min_size=1))
def test_class_weights_are_those_of_scikit_learn(counts: dict[str, int]):
    weight = pytest.importorskip("sklearn.utils.class_weight")
    numpy = pytest.importorskip("numpy")
    labels = [label for label, count in counts.items() for _ in range(count)]
    expected = weight.compute_class_weight("balanced", classes=numpy.array(list(counts)), y=labels)
    assert list(class_weights(counts).values()) == pytest.approx(list(expected))


def test_a_class_without_rows_weighs_one():
    assert class_weights({"a": 3, "b": 1, "c": 0}) == {"a": 4 / 6, "b": 2.0, "c": 1.0}
    assert class_weights({}) == {}
