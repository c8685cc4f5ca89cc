"""JSON lines, JSON documents and SQuAD."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.data.formats.text import HEAD
from inlay.data.record import Skipped
from inlay.data.source import open_source
from inlay.errors import DataError

ROWS = [{"text": "caf\xe9 \U0001f600", "label": "pos", "id": 1}, {"text": 'a "b"\n{c}', "label": None}]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def source(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return open_source(path)


def rows(opened):
    return [dict(record.fields) for record in opened.records()]


def lines(opened):
    return [int(record.place.rpartition(":")[2]) for record in opened.records()]


@pytest.mark.parametrize("ascii", [True, False])
def test_lines(ascii, tmp_path):
    text = "\n\n".join(json.dumps(row, ensure_ascii=ascii) for row in ROWS)
    opened = source(tmp_path, "a.jsonl", text)
    assert (opened.format, opened.columns) == ("jsonl", ("text", "label", "id"))
    assert rows(opened) == ROWS
    assert lines(opened) == [1, 3]


def test_separators_of_unicode_are_no_line_ends(tmp_path):
    row = {"text": "one\u2028two\x85three\x0b", "label": "pos"}
    assert rows(source(tmp_path, "a.jsonl", json.dumps(row, ensure_ascii=False) + "\n")) == [row]


@examples(60)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=3), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_document_is_read_as_the_standard_library_reads_it(tmp_path_factory, table, keyed):
    document = {str(i): row for i, row in enumerate(table)} if keyed else table
    folder = tmp_path_factory.mktemp("json")
    for indent in (None, 1):
        text = json.dumps(document, indent=indent)
        assert rows(source(folder, "a.json", text)) == [dict(row) for row in json.loads(json.dumps(table))]


def test_the_place_of_a_row_is_where_its_object_starts(tmp_path):
    opened = source(tmp_path, "a.json", json.dumps(ROWS, indent=2))
    assert lines(opened) == [2, 7]
    opened = source(tmp_path, "a.json", json.dumps({"a": ROWS[0], "b": ROWS[1]}, indent=2))
    assert lines(opened) == [2, 7]


def test_a_first_object_larger_than_the_head(tmp_path):
    table = [{"text": "x" * 2 * HEAD, "label": "pos"}, {"text": "y", "other": 1}]
    for name, text in (("a.json", json.dumps(table)), ("a.jsonl", "\n".join(map(json.dumps, table)))):
        opened = source(tmp_path, name, text)
        assert opened.columns == ("text", "label", "other")
        assert rows(opened) == table


def test_bad_lines_are_told(tmp_path):
    skipped = Skipped()
    opened = source(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": \n3\n{}\n{"text": "b"}\n')
    assert [record.fields["text"] for record in opened.records(skipped)] == ["a", "b"]
    assert skipped.count == 3


def test_pairs_of_surrogates_are_characters(tmp_path):
    assert rows(source(tmp_path, "a.jsonl", '{"text": "\\ud83d\\ude00"}\n')) == [{"text": "\U0001f600"}]


CONTEXT = "Bees live in hives. They make honey."
GOOD = {"id": "a", "question": "Where?", "answers": [{"text": "hives", "answer_start": 13}]}
TWICE = {
    "id": "b",
    "question": "Who?",
    "answers": [{"text": "Bees", "answer_start": 0}, {"text": "They", "answer_start": 20}],
}
NONE = {"id": "c", "question": "When?", "answers": [], "is_impossible": True}
PLAUSIBLE = {
    "id": "d",
    "question": "Why?",
    "is_impossible": True,
    "plausible_answers": [{"text": "honey", "answer_start": 30}],
}
UNKNOWN = {"id": "e", "question": "How?"}


def squad(*questions, **more):
    paragraphs = [{"context": CONTEXT, "qas": [one]} for one in questions]
    return {"version": "v2.0", "data": [{"title": "Bees", "paragraphs": paragraphs, **more}]}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("first", ["version", "data"])
def test_squad(indent, first, tmp_path):
    document = squad(GOOD, TWICE, NONE, PLAUSIBLE)
    ordered = {first: document[first], **document}
    opened = source(tmp_path, "dev.json", json.dumps(ordered, indent=indent))
    assert opened.format == "squad"
    assert opened.columns == ("id", "question", "context", "answers")
    assert opened.hints["task"] == "qa"
    found = rows(opened)
    assert [row["id"] for row in found] == ["a", "b", "c", "d"]
    assert [row["answers"] for row in found] == [GOOD["answers"], TWICE["answers"], [], []]
    assert {row["context"] for row in found} == {CONTEXT}


def test_squad_larger_than_the_head(tmp_path):
    document = squad(*[{**GOOD, "id": str(i)} for i in range(3000)])
    text = json.dumps(document)
    assert len(text) > HEAD
    opened = source(tmp_path, "dev.json", text)
    assert opened.format == "squad"
    assert len(rows(opened)) == 3000


def test_questions_without_answers_are_not_impossible_ones(tmp_path):
    assert "answers" not in rows(source(tmp_path, "test.json", json.dumps(squad(UNKNOWN))))[0]


def test_wrong_answers_are_told_and_the_rest_is_read(tmp_path):
    wrong = {"id": "x", "question": "What?", "answers": [{"text": "honey", "answer_start": 29}]}
    skipped = Skipped()
    opened = source(tmp_path, "dev.json", json.dumps(squad(GOOD, wrong, TWICE)))
    assert [record.fields["id"] for record in opened.records(skipped)] == ["a", "b"]
    assert skipped.count == 1
    assert "'honey' is not at character 29" in skipped.first[0]


def test_a_squad_document_is_read_to_its_end(tmp_path):
    with pytest.raises(DataError, match="more text after the end"):
        rows(source(tmp_path, "dev.json", json.dumps(squad(GOOD)) + "}"))
    with pytest.raises(DataError, match="not JSON"):
        rows(source(tmp_path, "dev.json", json.dumps(squad(GOOD))[:-1]))
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": []}))
    with pytest.raises(DataError, match='no array "data"'):
        rows(open_source(path, format="squad"))
