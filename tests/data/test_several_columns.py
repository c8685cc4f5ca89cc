"""Texts joined from several columns, and labels in columns of 0 and 1."""

from __future__ import annotations

from typing import Any

import pytest
from training import work

import inlay
from inlay.data.columns import Columns, choose
from inlay.data.record import Record
from inlay.errors import DataError
from inlay.runs.prepare import prepare
from inlay.tasks import Unusable, parse

MAILS = [
    {"subject": "parcel late", "body": "it never came and I am waiting", "late": 1, "refund": 0, "praise": 0},
    {"subject": "", "body": "I want my money back for the soup", "late": 0, "refund": 1, "praise": 0},
    {"subject": "thanks", "body": "a good film and a fine book", "late": 0, "refund": 0, "praise": 1},
    {"subject": "late again", "body": "no parcel, so refund it please", "late": 1, "refund": 1, "praise": 0},
]


def pick(rows: list[dict[str, Any]], task: str | None = None, **given: str) -> tuple[str, Columns, str]:
    return choose(task, list(rows[0]), [Record(row, "f.csv:2") for row in rows], given, {}, "f.csv")


def read(task: str, row: dict[str, Any], columns: Columns) -> Any:
    return parse(task).read(Record(row, "f.csv:2"), columns)


def test_columns_of_0_and_1_that_are_given_are_labels():
    task, columns, _ = pick(MAILS, label="late,refund, praise", text="body")
    assert (task, columns.label) == ("multilabel", "late,refund, praise")
    assert [read(task, row, columns).target for row in MAILS] == [
        ("late",),
        ("refund",),
        ("praise",),
        ("late", "refund"),
    ]


def test_columns_of_0_and_1_beside_each_other_are_guessed_to_be_labels():
    task, columns, line = pick(MAILS)
    assert (task, columns.label) == ("multilabel", "late,refund,praise")
    assert 'label = "late,refund,praise", task = multilabel' in line
    assert pick(MAILS, "multilabel")[1] == columns


@pytest.mark.parametrize(
    ("change", "task", "label"),
    [
        ({"label": ["a", "b", "a", "b"]}, "classification", "label"),
        ({"late": [0, 0, 0, 0]}, "multilabel", "late,refund,praise"),
        ({"late": [True, False, True, False], "refund": ["1", "0", "1.0", "0.0"]}, "multilabel", "late,refund,praise"),
        ({"refund": [0, 0, 0, 0], "praise": [0, 0, 0, 0]}, "classification", "late"),
        ({"refund": [0, 1, 2, 0]}, "classification", "late"),
    ],
)
def test_what_is_not_a_row_of_flags(change, task, label):
    rows = [{**row, **{name: values[i] for name, values in change.items()}} for i, row in enumerate(MAILS)]
    found, columns, _ = pick(rows)
    assert (found, columns.label) == (task, label)


def test_flags_with_the_word_label_in_their_names():
    names = {"late": "late_label", "refund": "refund_label", "praise": "praise_label"}
    rows = [{names.get(key, key): value for key, value in row.items()} for row in MAILS]
    assert pick(rows)[1].label == "late_label,refund_label,praise_label"


def test_something_else_than_0_and_1_is_a_bad_row():
    columns = Columns(text="body", label="late,refund")
    for value, said in (("-1", "'-1'; expected 0 or 1"), ("", "'late' is empty"), ("2.0", "expected 0 or 1")):
        with pytest.raises(Unusable, match=said):
            read("multilabel", {**MAILS[0], "late": value}, columns)


def test_texts_are_joined():
    task, columns, _ = pick(MAILS, "multilabel", text="subject,body")
    assert columns.text == "subject,body"
    found = [read(task, row, columns).text for row in MAILS]
    assert found[0] == "parcel late it never came and I am waiting"
    assert found[1] == "I want my money back for the soup"
    with pytest.raises(Unusable, match="the columns subject, body are empty"):
        read(task, {**MAILS[0], "subject": " ", "body": None}, columns)


def test_a_column_with_a_comma_in_its_name_is_one_column():
    rows = [{"subject,body": row["body"], "label": "ab"[i % 2]} for i, row in enumerate(MAILS)]
    task, columns, _ = pick(rows, text="subject,body", label="label")
    assert read(task, rows[0], columns).text == MAILS[0]["body"]


@pytest.mark.parametrize(
    ("task", "given", "said"),
    [
        (None, {"text": "subject,boddy"}, r"no column 'boddy' \(--text\). Did you mean body"),
        (None, {"text": "subject,body", "label": "body,late"}, "--text and --label both name the column 'body'"),
        (None, {"text": "body,body"}, "--text body,body names a column twice"),
        ("classification", {"label": "late,refund"}, "several columns of 0 and 1 are for --task multilabel"),
        ("regression", {"label": "late,refund"}, "regression has one column of its label"),
        ("qa", {"text": "subject,body"}, "qa has one column of its question"),
    ],
)
def test_mistakes(task, given, said):
    with pytest.raises(DataError, match=said):
        pick(MAILS, task, **given)


def test_a_column_of_texts_that_is_not_used_is_named():
    rows = [
        {"headline": f"a longer headline, number {i}", "body": row["body"], "label": i % 2}
        for i, row in enumerate(MAILS)
    ]
    assert pick(rows)[2].endswith(
        "; not used: headline (--text headline,body joins columns, --pair headline makes pairs)"
    )
    assert "not used" not in pick(rows, text="body")[2]
    names = [{**row, "airline": "Virgin America", "body": f"{row['body']} {i}"} for i in range(4) for row in rows]
    assert "airline" not in pick(names)[2]


def test_a_run_learns_from_both_and_keeps_the_columns():
    rows = [{**row, "body": f"{row['body']} {i}"} for i in range(6) for row in MAILS]
    run = inlay.Run(data=rows, text="subject,body", val_size=6, epochs=1, method="bitfit")
    data = prepare(run, work.host())
    assert data.labels == ("late", "praise", "refund")
    assert (data.columns.text, data.columns.label) == ("subject,body", "late,refund,praise")
    assert data.look.kind == "label"


def test_a_bad_row_names_the_way_out():
    rows = [*MAILS * 4, {**MAILS[0], "late": "maybe"}]
    with pytest.raises(DataError, match=r"expected 0 or 1; --skip-bad-rows leaves such rows out"):
        prepare(inlay.Run(data=rows, text="body", label="late,refund", epochs=1), work.host())
    data = prepare(inlay.Run(data=rows, text="body", label="late,refund", epochs=1, skip_bad_rows=True), work.host())
    assert len(data.train.examples) + len(data.validation.examples) == 16
