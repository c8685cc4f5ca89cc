"""What is said of strange classes, of tags, and of files that cannot be read."""

from __future__ import annotations

import pytest
from training import work

import inlay
from inlay.data.describe import lines, odd_labels, tag_form
from inlay.data.source import open_source, open_splits
from inlay.errors import DataError
from inlay.runs.prepare import prepare


def test_classes_that_look_like_one():
    said = odd_labels({"Yes": 30, "No": 20, "Y": 4, "N": 1, "maybe": 3}, "class")
    assert said == [
        "'Yes' (30 rows) and 'Y' (4 rows) look like one class; they are trained as 2",
        "'No' (20 rows) and 'N' (1 row) look like one class; they are trained as 2",
    ]
    assert odd_labels({"spam": 3, "Spam": 2, " SPAM": 1}, "class")[0].endswith(
        "look like one class; they are trained as 3"
    )
    assert odd_labels({"Y": 3, "N": 2}, "class") == odd_labels({"B-Y": 1, "b-y": 1}, "tag") == []


def test_classes_of_one_row_look_like_a_wrong_column():
    few = {f"id {n}": 1 for n in range(15)} | {f"topic {n}": 4 for n in range(10)}
    assert odd_labels(few, "class") == ["15 of 25 classes have only one row; --label names another column"]
    assert odd_labels({f"id {n}": 1 for n in range(10)}, "class") == []
    assert odd_labels({f"topic {n}": 4 for n in range(25)}, "class") == []
    assert odd_labels(few, "tag") == []


def test_classes_that_mean_no_label():
    said = odd_labels({"pos": 3, "nan": 2, "N/A": 1}, "class")
    assert said == [
        "'nan' (2 rows) is treated as a class; if it means that there is no label, remove these rows",
        "'N/A' (1 row) is treated as a class; if it means that there is no label, remove these rows",
    ]


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["O", "B-PER", "I-PER", "B-LOC"], "tags: BIO, 2 kinds of entities (LOC, PER); scored by F1 over entities"),
        (["O", "S-PER", "B-PER", "E-PER"], "tags: BIOES, 1 kind of entity (PER); scored by F1 over entities"),
        (["O", "I-PER"], "tags: IO, 1 kind of entity (PER); scored by F1 over entities"),
        (["NOUN", "VERB"], "tags: one for every word, no entities; scored by accuracy over words"),
        (["O"], "tags: one for every word, no entities; scored by accuracy over words"),
    ],
)
def test_how_tags_are_written(tags, said):
    assert tag_form(tags) == said


def test_tagging_shows_its_tags_and_format(tmp_path):
    file = tmp_path / "names.conll"
    sentences = [zip(row["tokens"], row["tags"], strict=True) for row in work.entities(20)]
    file.write_text("\n".join("".join(f"{word} {tag}\n" for word, tag in one) for one in sentences))
    data = prepare(inlay.Run(data=str(file), val_size=4, epochs=1), work.host())
    words = sum(len(e.words) for e in data.train.examples)
    said = lines(data.look)
    assert said[0] == f"16 rows, {words} words, 3 tags"
    assert said[1].startswith("  O ")
    assert [line.split()[:2] for line in said[2:4]] == [["B-LOC", "16"], ["B-PER", "16"]]
    assert said[4] == "tags: BIO, 2 kinds of entities (LOC, PER); scored by F1 over entities"
    assert f"{file}: read as conll" in data.notes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.xml", "<rows><row/></rows>"),
        ("rows.txt", '<?xml version="1.0"?>\n<rows/>'),
        ("a.csv", "<!DOCTYPE html>\n<p>"),
    ],
)
def test_xml_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: XML and HTML are not supported; convert it to CSV"):
        open_source(tmp_path / name)


def test_xml_in_a_folder_is_named(tmp_path):
    (tmp_path / "train.xml").write_text("<rows/>")
    with pytest.raises(DataError, match=r"found train.xml; XML and HTML are not supported"):
        open_splits(str(tmp_path))


def test_a_table_may_begin_with_a_bracket(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n<b>good</b>,pos\n<i>bad</i>,neg\n")
    assert open_source(tmp_path / "a.csv").columns == ("text", "label")
