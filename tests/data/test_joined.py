"""Several files that are read as one: named with commas, or treebanks of one language."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import work

import inlay
from inlay.data.folder import find_languages
from inlay.data.source import open_source, open_splits
from inlay.errors import DataError
from inlay.runs.manifest import read_manifest
from inlay.runs.prepare import prepare
from inlay.sweeps.sweep_file import read_file

TREE = "1\tAna\t_\tPROPN\t_\t_\t0\troot\t_\t_\n2\tmeets\t_\tVERB\t_\t_\t1\tdep\t_\t_\n\n"


def rows(path: Path, texts: list[str], header: str = "text,label") -> str:
    path.write_text("\n".join([header, *(f"{text},x" for text in texts), ""]), encoding="utf-8")
    return str(path)


def test_files_with_commas_between_them_are_one(tmp_path: Path):
    first, second = rows(tmp_path / "a.csv", ["one", "two"]), rows(tmp_path / "b.csv", ["three"])
    for name in (f"{first},{second}", f"{first}, {second}"):
        found = open_splits(name)["train"]
        records = list(found.records())
        assert [record.fields["text"] for record in records] == ["one", "two", "three"]
        assert records[2].place == f"{second}:2"  # its own file and line
        assert found.columns == ("text", "label")


def test_a_file_whose_name_has_a_comma_is_itself(tmp_path: Path):
    name = rows(tmp_path / "a.csv,b.csv", ["one"])
    assert [record.fields["text"] for record in open_source(name).records()] == ["one"]


def test_files_that_do_not_fit_are_refused(tmp_path: Path):
    first, other = rows(tmp_path / "a.csv", ["one"]), rows(tmp_path / "b.csv", ["two"], "words,label")
    with pytest.raises(DataError, match="have different columns, so they cannot be joined"):
        open_source(f"{first},{other}")
    with pytest.raises(DataError, match=r"c\.csv: there is no such file"):
        open_source(f"{first},{tmp_path / 'c.csv'}")


def test_a_run_reads_them(tmp_path: Path):
    for name in ("en_a-ud-train.conllu", "en_b-ud-train.conllu"):
        (tmp_path / name).write_text("".join(TREE.replace("Ana", f"{name[3]}{i}") for i in range(6)))
    both = ",".join(str(tmp_path / name) for name in ("en_a-ud-train.conllu", "en_b-ud-train.conllu"))
    data = prepare(inlay.Run(data=both, val_size=3, epochs=1), work.host())
    assert len(data.train.examples) + len(data.validation.examples) == 12
    assert data.task.kind == "tagging"


def test_beside_the_file_that_names_them(tmp_path: Path):
    rows(tmp_path / "a.csv", ["one"]), rows(tmp_path / "b.csv", ["two"])
    wanted = f"{tmp_path / 'a.csv'},{tmp_path / 'b.csv'}"
    (tmp_path / "tasks.toml").write_text('[tasks.it]\ndata = "a.csv,b.csv"\n')
    assert read_manifest(tmp_path / "tasks.toml")[0].data == wanted
    more = '[settings]\nunlabelled = "a.csv"\n[grid]\nlr = [1e-3, 1e-2]\n'
    (tmp_path / "sweep.toml").write_text(f'data = "a.csv,b.csv"\n{more}')
    settings = read_file(tmp_path / "sweep.toml")[1]
    assert settings == {"data": wanted, "unlabelled": str(tmp_path / "a.csv")}


def test_treebanks_of_a_language_are_joined_and_other_files_are_not(tmp_path: Path):
    for name in ("de_gsd-ud-test.conllu", "de_hdt-ud-test.conllu", "fr_gsd-ud-test.conllu", "de_hdt-ud-dev.conllu"):
        (tmp_path / name).write_text(TREE, encoding="utf-8")
    found = find_languages(tmp_path)
    assert str(found["de"]) == f"{tmp_path / 'de_gsd-ud-test.conllu'},{tmp_path / 'de_hdt-ud-test.conllu'}"
    assert found["fr"] == tmp_path / "fr_gsd-ud-test.conllu"
    assert len(list(open_source(found["de"]).records())) == 2
    rows(tmp_path / "test-de.csv", ["one"])
    with pytest.raises(DataError, match="3 files for language de"):
        find_languages(tmp_path)
