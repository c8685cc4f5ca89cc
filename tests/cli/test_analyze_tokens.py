"""`inlay analyze alpha | words | shift | sparsity`: files, one JSON document, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app

ADAPTERS = {"biased": "adapterbias", "other": "adapterbias:share=v", "bitfit": "bitfit", "gated": "adapterbias:l0=0.5"}


class Place:
    """A library with an adapter of every kind."""

    def __init__(self, root: Path):
        self.root = root
        self.base = tiny.save_text_model(root / "base")
        self.texts = self.write("texts", work.texts(24))
        self.val = self.write("val", work.texts(12, seed=1))
        for name, method in ADAPTERS.items():
            self.train(name, self.texts, "--val", self.val, "--method", method)
        self.train("stars", self.write("stars", work.ratings(20)), "--task", "regression", "--method", "adapterbias")

    def train(self, name: str, *how: Any) -> None:
        done = self.call("train", *how, "--name", name, "--max-steps", 2, "--base", self.base)
        assert done.exit_code == 0, done.output

    def write(self, name: str, rows: Any) -> Path:
        path = self.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def call(self, *arguments: Any) -> Any:
        where = ["--library", str(self.root / "library")]
        return CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "100"})

    def analyze(self, *arguments: Any) -> Any:
        done = self.call("analyze", *arguments, "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["kind"] == arguments[0]
        assert [Path(file).suffix for file in found["files"]] == [".png", ".svg", ".csv"]
        assert all(Path(file).stat().st_size for file in found["files"])
        with Path(found["files"][2]).open(newline="") as file:
            assert len(list(csv.reader(file))) == 1 + len(found["rows"])
        return found

    def fails(self, *arguments: Any) -> str:
        done = self.call("analyze", *arguments)
        assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return str(done.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("analyze"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_alpha_of_several(place: Place):
    found = place.analyze("alpha", "biased,gated,stars")
    assert found["files"][0] == "biased-gated-stars-alpha.png"
    assert [(row["adapter"], row["layer"]) for row in found["rows"]][2:5] == [("biased", 2), ("gated", 0), ("gated", 1)]
    assert "of 12 texts, 18 tokens of 2 texts" in found["about"], (
        "12 that two were validated on, and 2 that stars held out"
    )


@pytest.mark.full
def test_alpha_on_one_file_for_all_or_one_for_each(place: Place):
    assert place.analyze("alpha", "biased,other", place.texts)["about"].endswith(" of 24 texts each")
    own = place.analyze("alpha", "biased,other", place.texts, place.val)["about"]
    assert " of 24 texts, " in own
    assert own.endswith(" of 12 texts")
    assert "of 5 texts" in place.analyze("alpha", "biased", place.texts, "--rows", 5)["about"]
    said = place.fails("alpha", "biased,other,gated", place.texts, place.val)
    assert "2 files for 3 adapters" in said


@pytest.mark.full
def test_words(place: Place, here: Path):
    found = place.analyze("words", "biased", "--out", here / "new" / "cloud")
    assert found["files"][0] == str(here / "new" / "cloud.png")
    assert {row["layers"] for row in found["rows"]} == {"all", "lower", "upper"}
    lower = place.analyze("words", "biased@1", place.texts, "--layers", "lower", "--negative", "drop", "--top", 7)
    assert lower["files"][0] == "biased-1-words.png"
    assert {row["layers"] for row in lower["rows"]} == {"lower"}
    assert len(lower["rows"]) <= 7
    assert all(row["weight"] > 0 for row in lower["rows"])


@pytest.mark.full
def test_shift(place: Place):
    found = place.analyze("shift", "biased,bitfit", "--texts", 4, "--bare")
    assert list(dict.fromkeys(row["adapter"] for row in found["rows"])) == ["biased", "bitfit", "the bare base"]
    assert {row["text"] for row in found["rows"]} == {0, 1, 2, 3}
    assert "bitfit: agreement of directions" in found["summary"]


def test_sparsity(place: Place):
    found = place.analyze("sparsity", "gated")
    assert [row["layer"] for row in found["rows"]] == [0, 1, 2]
    assert {row["of"] for row in found["rows"]} == {24}


def test_people_read_what_it_comes_to(place: Place):
    done = place.call("analyze", "sparsity", "gated")
    assert done.exit_code == 0
    assert "percent left" in done.stdout
    assert "written: gated-sparsity.png, gated-sparsity.svg, gated-sparsity.csv" in done.stdout


def test_refused(place: Place, here: Path):
    same = place.write("same", [row for row in work.texts(12) if row["label"] == "pos"])
    assert "bitfit is bitfit, which has no alpha" in place.fails("alpha", "biased,bitfit")
    assert "bitfit is bitfit, which has no alpha" in place.fails("words", "bitfit")
    assert "biased was trained without L0" in place.fails("sparsity", "biased")
    assert "stars is for regression" in place.fails("shift", "stars")
    assert "has the label pos; shift compares labels" in place.fails("shift", "biased", same)
    assert "biased is named twice" in place.fails("alpha", "biased,biased")
    assert "nobody" in place.fails("words", "nobody")
    assert not list(here.iterdir()), "nothing is written by what fails"


def test_its_own_rows_are_gone(place: Place):
    away = place.val.rename(place.root / "away.jsonl")
    try:
        assert "which no longer exists; pass DATA" in place.fails("words", "biased")
        assert place.analyze("words", "biased", away)["rows"]
    finally:
        away.rename(place.val)


def test_wrong_usage(place: Place):
    done = place.call("analyze", "words", "biased", "--layers", "middle")
    assert done.exit_code == 2
