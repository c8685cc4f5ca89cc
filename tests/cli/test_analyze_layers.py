"""`inlay analyze ablation | landscape | rsa`: files, the JSON document, rows of their own, and what is refused."""

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
from inlay.library.library import Library

pytest.importorskip("matplotlib")


class Place:
    """A library with a classifier of every kind, all trained on one file."""

    def __init__(self, root: Path):
        self.root, self.library = root, str(root / "library")
        self.base = tiny.save_text_model(root / "base")
        self.data = root / "opinions.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(40)))
        for name, method in (("small", "houlsby:size=4"), ("tuned", "finetune"), ("plain", "norms")):
            asked = [self.data, "--name", name, "--method", method, "--max-steps", 3, "--base", self.base]
            assert self.call("train", *asked).exit_code == 0

    def call(self, *arguments: Any) -> Any:
        asked = [*map(str, arguments), "--library", self.library]
        return CliRunner().invoke(app, asked, env={"COLUMNS": "100"})

    def analyze(self, *arguments: Any) -> Any:
        done = self.call("analyze", *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any) -> str:
        done = self.call("analyze", *arguments)
        assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
        return str(done.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("analyze"))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("kind", "names", "rows"), [("ablation", "small", 6), ("landscape", "small,tuned", 44), ("rsa", "small,tuned", 12)]
)
def test_three_files_and_a_document(place: Place, kind: str, names: str, rows: int) -> None:
    found = place.analyze(kind, names, place.data, "--rows", 12)
    stem = f"{names.replace(',', '-')}-{kind}"
    assert found["files"] == [f"{stem}.png", f"{stem}.svg", f"{stem}.csv"]
    assert Path(f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert Path(f"{stem}.svg").read_text().startswith("<?xml")
    with Path(f"{stem}.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(found["rows"]) == rows
    assert set(table[0]) == set(found["rows"][0])
    assert found["kind"] == kind
    assert "opinions.jsonl" in found["about"]


@pytest.mark.full
def test_without_data_the_rows_are_those_that_were_held_out(place: Place) -> None:
    """Drawn again from the file, which must be as it was; the whole adapter has the metric of its training."""
    found = place.analyze("ablation", "small", "--metric", "accuracy", "--out", "pictures/a")
    assert "4 rows (rows of opinions.jsonl that were held out)" in found["about"]
    assert Path("pictures/a.csv").exists()
    assert (
        "36 rows (rows of opinions.jsonl that were trained on)"
        in place.analyze("ablation", "small", "--metric", "accuracy", "--split", "train")["about"]
    )
    assert "no split 'test'" in place.fails("ablation", "small", "--split", "test")
    card = Library(place.library).find("small").card
    assert found["summary"]["whole adapter"] == pytest.approx(card["metrics"]["validation"]["accuracy"])
    said = place.data.read_text()
    try:
        place.data.write_text(said.replace("film", "book"))
        assert "has changed since small was trained on it; pass DATA" in place.fails("ablation", "small")
        place.data.rename(place.root / "away")
        assert "which no longer exists; pass DATA" in place.fails("rsa", "small")
    finally:
        (place.root / "away").unlink(missing_ok=True)
        place.data.write_text(said)


def test_rows_that_were_learned_from_are_not_held_out(place: Place) -> None:
    asked = ["--method", "norms", "--max-steps", 1, "--base", place.base]
    assert place.call("train", place.data, "--name", "folded", "--folds", 2, *asked).exit_code == 0
    assert "folded learned from all its rows" in place.fails("ablation", "folded")
    assert place.call("train", place.data, "--name", "tested", "--test-size", 7, *asked).exit_code == 0
    assert place.analyze("rsa", "tested", "--split", "test")["files"]


def test_rows_of_several_files_are_found_again(place: Place) -> None:
    more = place.root / "more.jsonl"
    more.write_text("".join(json.dumps(row) + "\n" for row in work.texts(10, 1)))
    asked = ["--method", "norms", "--max-steps", 1, "--base", place.base]
    assert place.call("train", f"{place.data},{more}", "--name", "joined", *asked).exit_code == 0
    assert "rows of opinions.jsonl,more.jsonl that were held out" in place.analyze("rsa", "joined")["about"]
    more.unlink()
    assert "which no longer exists; pass DATA" in place.fails("rsa", "joined")


def test_rsa_needs_no_labels(place: Place, tmp_path: Path) -> None:
    bare = tmp_path / "texts.jsonl"
    bare.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in work.texts(8)))
    assert place.analyze("rsa", "small", bare)["summary"]["tokens"] > 20


def test_what_people_read(place: Place) -> None:
    done = place.call("analyze", "ablation", "small", place.data, "--metric", "accuracy")
    assert done.exit_code == 0, done.output
    for said in ("40 rows", "majority class", "0.5", "written: small-ablation.png"):
        assert said in done.stdout


@pytest.mark.full
def test_what_is_refused(place: Place, tmp_path: Path) -> None:
    assert "nothing to remove in the layers; pass with_norms (--with-norms)" in place.fails(
        "ablation", "plain", place.data
    )
    assert place.analyze("ablation", "plain", place.data, "--with-norms")["rows"]
    assert "there is no such file" in place.fails("ablation", "small", tmp_path / "none.csv")
    assert "no split 'test'" in place.fails("rsa", "small", place.data, "--split", "test")
    assert "smal" in place.fails("landscape", "smal", place.data)
    assert "perplexity" in place.fails("landscape", "small", place.data, "--metric", "perplexity")
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "the film"}\n')
    assert "2 tokens, which is too few" in place.fails("rsa", "small", few)
    assert "',' names no adapter" in place.fails("rsa", ",", few)
