"""CSV and TSV: delimiters, headers, quotes, line ends, encodings."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.data.formats.delimited import has_header
from inlay.data.formats.text import HEAD
from inlay.data.source import open_source
from inlay.errors import DataError


def source(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_source(path, **options)


def rows(opened):
    return [tuple(record.fields.values()) for record in opened.records()]


def lines(opened):
    return [int(record.place.rpartition(":")[2]) for record in opened.records()]


CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@examples(150)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8), st.sampled_from(",;|\t"), st.booleans())
def test_what_csv_writes_is_read_back(tmp_path_factory, table, delimiter, quote_all):
    """The writer of the standard library is the oracle."""
    to = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    writer = csv.writer(to, delimiter=delimiter, lineterminator="\r\n", quoting=quoting)
    writer.writerows([("text", "label"), *table])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(to.getvalue().encode())
    opened = open_source(path)
    assert opened.columns == ("text", "label")
    assert rows(opened) == table


def test_a_line_inside_a_quoted_cell_does_not_decide_the_delimiter(tmp_path):
    opened = source(tmp_path, "a.csv", '"text";"label"\n"b";"\n,0"\n')
    assert opened.columns == ("text", "label")
    assert rows(opened) == [("b", "\n,0")]


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_the_delimiter_is_found_among_others(delimiter, tmp_path):
    text = delimiter.join(["id", "text", "label"]) + "\n"
    text += "".join(delimiter.join([str(i), f'"one, two; three | four\t{i}"', "pos"]) + "\n" for i in range(5))
    opened = source(tmp_path, "a.csv", text)
    assert opened.columns == ("id", "text", "label")
    assert rows(opened)[4] == ("4", "one, two; three | four\t4", "pos")
    assert any("delimiter" in note for note in opened.notes) == (delimiter != ",")


def test_a_delimiter_without_header_and_with_commas_in_the_text(tmp_path):
    opened = source(tmp_path, "a.csv", "pos;Good, nice\nneg;Bad\npos;Well, well, well\n")
    assert opened.columns == ("column1", "column2")
    assert rows(opened)[2] == ("pos", "Well, well, well")


@pytest.mark.parametrize(
    ("first", "below", "header"),
    [
        (["text", "label"], [["good", "pos"]], True),
        (["sentence1", "sentence2", "label"], [], True),
        (["text", "label"], [["a", "b"], ["text", "label"]], True),
        (["", "text", "label"], [["0", "good", "pos"]], True),
        (["text", "2024"], [["good", "1"], ["bad", "0"]], True),
        (["v1", "v2"], [["ham", "see you"], ["spam", "win"]], True),
        (["team", "ticket"], [["sales", "where is it"]], True),
        (["ham", "Ok lar... Joking"], [["ham", "yes"], ["spam", "win"]], False),
        (["What is this?", "question"], [["It is.", "statement"], ["Why?", "question"]], False),
        (["gj04", "1", "", "The sailors rode the breeze."], [["gj04", "0", "*", "The car rode."]], False),
        (["One long sentence stands here, and it ends.", "pos"], [["Other", "neg"]], False),
        (["https://example.org", "pos"], [["b", "neg"]], False),
        (["0.5", "low"], [["0.7", "high"]], False),
        (["just a text"], [["and another"]], False),
        (["text"], [["just one"]], True),
        (["alone", "here"], [], False),
    ],
)
def test_headers(first, below, header):
    assert has_header([first, *below]) is header


def test_names_are_told_when_they_are_ours_or_guessed(tmp_path):
    opened = source(tmp_path, "sms", 'ham\tOk lar\nspam\tWin "now\nham\tU dun say\n')
    assert opened.notes == ("no header row: columns are named column1, column2",)
    assert rows(opened)[1] == ("spam", 'Win "now')
    opened = source(tmp_path, "a.csv", "v1,v2\nham,Ok\nspam,Win\n")
    assert opened.notes == ("the first row is taken as the header: v1, v2",)


def test_the_index_that_pandas_writes_gets_a_name(tmp_path):
    opened = source(tmp_path, "a.csv", ",text,label\n0,good,pos\n1,bad,neg\n")
    assert opened.columns == ("column1", "text", "label")


def test_stray_quotes_in_tabs_are_text(tmp_path):
    text = 'text\tlabel\n" an opening one\tpos\nshe said "no"\tneg\n"whole"\tpos\n'
    assert rows(source(tmp_path, "a.tsv", text)) == [
        ('" an opening one', "pos"),
        ('she said "no"', "neg"),
        ('"whole"', "pos"),
    ]


def test_tabs_with_clear_quoting(tmp_path):
    table = [("text", "label"), ('she said "no"', "neg"), ("plain", "pos"), ("tab\there", "pos"), ("two\nlines", "neg")]
    for kept in (table[:3], table[:4], table):
        to = io.StringIO(newline="")
        csv.writer(to, delimiter="\t", lineterminator="\n").writerows(kept)
        assert rows(source(tmp_path, "a.tsv", to.getvalue())) == kept[1:]


def test_quoting_is_seen_in_a_head_that_ends_inside_a_quote(tmp_path):
    table = [("text", "label"), *[("two\nlines\nor\n\n\nmore " + "x" * 50, "pos")] * (HEAD // 60)]
    to = io.StringIO(newline="")
    csv.writer(to, delimiter="\t", lineterminator="\n").writerows(table)
    assert rows(source(tmp_path, "a.tsv", to.getvalue())) == table[1:]


def test_a_cell_longer_than_the_limit_of_the_standard_library(tmp_path):
    long = "word " * 60_000
    assert rows(source(tmp_path, "a.csv", f'text,label\n"{long}",pos\nb,neg\n'))[0] == (long, "pos")


def test_a_row_over_several_lines_stands_where_it_starts(tmp_path):
    opened = source(tmp_path, "a.csv", 'text,label\n"one\ntwo",pos\n\nthree,neg\n"four\n\nfive",pos\nsix,neg\n')
    assert lines(opened) == [2, 5, 6, 9]
    assert rows(opened)[2] == ("four\n\nfive", "pos")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_line_ends(name, end, tmp_path):
    cells = [("text", "label"), ("one", "pos"), ("two", "neg")]
    text = end.join(("," if name == "a.csv" else "\t").join(row) for row in cells)
    for content in (text, text + end):
        opened = source(tmp_path, name, content)
        assert rows(opened) == cells[1:]
        assert lines(opened) == [2, 3]


def test_bare_carriage_returns_with_line_feeds_inside_cells(tmp_path):
    opened = source(tmp_path, "a.csv", 'text,label\rone,pos\r"two\nlines",neg\rthree,pos\r')
    assert rows(opened) == [("one", "pos"), ("two\nlines", "neg"), ("three", "pos")]


def test_a_stray_carriage_return_is_no_line_end_in_a_file_of_line_feeds(tmp_path):
    opened = source(tmp_path, "a.tsv", "text\tlabel\none\rmore\tpos\ntwo\tneg\n")
    assert rows(opened) == [("one\rmore", "pos"), ("two", "neg")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_encodings(encoding, tmp_path):
    text = "text,label\ncaf\xe9 \u201cbon\u201d,pos\nd\xe9j\xe0 vu,neg\n"
    marked = encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    for given_name in [None, encoding] if marked else [encoding]:
        opened = source(tmp_path, "a.csv", text.encode(encoding), encoding=given_name)
        assert opened.columns == ("text", "label")
        assert rows(opened) == [("caf\xe9 \u201cbon\u201d", "pos"), ("d\xe9j\xe0 vu", "neg")]
        assert bool(opened.notes) == (not encoding.startswith("utf-8"))


def test_a_mark_is_dropped_whatever_the_encoding_given(tmp_path):
    content = "\ufefftext,label\na,pos\n".encode("utf-16-le")
    assert source(tmp_path, "a.csv", content, encoding="utf-16-le").columns == ("text", "label")


def test_a_character_cut_by_the_head_is_whole(tmp_path):
    opened = source(tmp_path, "a.csv", "text,label\n" + "\u20ac\u20ac\u20ac\u20ac\u20ac,pos\n" * (HEAD // 15))
    assert {text for text, _ in rows(opened)} == {"\u20ac" * 5}


def test_the_line_of_a_byte_in_a_file_of_carriage_returns(tmp_path):
    with pytest.raises(DataError, match=r"a\.csv:4: byte 0xe9"):
        source(tmp_path, "a.csv", b"text,label\ra,pos\rb,neg\rcaf\xe9,pos\r")


def test_bytes_that_cp1252_lacks_get_other_advice(tmp_path):
    with pytest.raises(DataError, match="--encoding latin-1"):
        source(tmp_path, "a.csv", b"text,label\n\x89\x9d,pos\n")
