"""Every malformed file gives one short message that names the file, the line and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from data.malformed import GOOD, MALFORMED, SCORES, UD, WORDS, Malformed, answer, lines, objects, parquet, squad, table

from inlay.data.record import Record
from inlay.data.source import open_source
from inlay.errors import DataError

READ = [case for case in MALFORMED if case.stage == "read"]
LATER = [case for case in MALFORMED if case.stage == "task"]


def needs(case: Malformed) -> None:
    if case.file.endswith(".parquet"):
        pytest.importorskip("pyarrow")


def drain(case: Malformed, path: Path) -> list[Record]:
    return list(open_source(path, encoding=case.option("encoding"), format=case.option("format")).records())


def test_the_table_is_large_and_its_names_are_unique():
    assert len(MALFORMED) >= 40
    assert len(LATER) >= 8
    assert len({case.name for case in MALFORMED}) == len(MALFORMED)
    assert {case.task for case in MALFORMED} >= {"classification", "regression", "tagging", "qa"}


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_the_reader_says_what_is_wrong_and_where(case, tmp_path):
    needs(case)
    path = case.write(tmp_path)
    with pytest.raises(DataError) as caught:
        drain(case, path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert (f"{case.file}:{case.line}: " if case.line else case.file) in message
    assert not [word for word in case.words if word not in message], message
    assert "\n" not in message
    assert len(message.replace(str(tmp_path), "")) < 400


@pytest.mark.parametrize("case", LATER, ids=lambda case: case.name)
def test_what_a_later_stage_notices_can_be_read(case, tmp_path):
    path = case.write(tmp_path)
    records = drain(case, path)
    assert records
    if case.line:
        assert f"{path}:{case.line}" in [record.place for record in records]


CONTROLS = {
    "a.csv": (table(GOOD), 10),
    "a.jsonl": (objects(), 10),
    "a.json": (b"[" + b",\n".join(objects().splitlines()) + b"]", 10),
    "a.conll": (lines(*WORDS * 3), 3),
    "a.conllu": (lines(*UD * 3), 3),
    "squad.json": (squad(answer("honey", 30)), 2),
    "a.parquet": (lambda: parquet(3), 3),
    "scores.csv": (table(SCORES, "text,score"), 10),
}


@pytest.mark.parametrize("file", CONTROLS)
def test_the_same_files_without_the_mistake_are_read(file, tmp_path):
    content, rows = CONTROLS[file]
    control = Malformed("control", file, content, "", ())
    needs(control)
    assert len(drain(control, control.write(tmp_path))) == rows
