"""`inlay report`: from a card alone, on rows that are given, two adapters, and rows that are not what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app

pytest.importorskip("matplotlib")


class Place:
    def __init__(self, root: Path):
        self.root = root
        self.base = tiny.save_text_model(root / "base")
        for name, rows in (("rows", work.texts(24)), ("val", work.texts(8, 1)), ("new", work.texts(12, 2))):
            self.write(name, rows)
        asked = ("--max-steps", "4", "--eval-every", "2", "--batch-size", "4", "--base", self.base)
        for name, method, more in (("a", "adapterbias", ()), ("b", "norms", ("--val", root / "val.jsonl"))):
            self.done("train", root / "rows.jsonl", "--name", name, "--method", method, *asked, *more)

    def write(self, name: str, rows: Any) -> Path:
        path = self.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def call(self, *arguments: Any) -> Any:
        words = [*map(str, arguments), "--library", str(self.root / "library")]
        return CliRunner().invoke(app, words, env={"COLUMNS": "100"})

    def done(self, *arguments: Any) -> Any:
        done = self.call(*arguments)
        assert done.exit_code == 0, done.output
        return done

    def report(self, *arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done("report", *arguments, "--json").stdout)
        found["html"] = Path(found["file"]).read_text(encoding="utf-8")
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("report"))


def test_without_data_it_is_what_training_held_out(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = place.done("report", "a")
    assert "written: a-report.html" in done.stdout
    assert "the validation rows of rows.jsonl" in done.stdout
    assert (tmp_path / "a-report.html").exists()
    found = place.report("b", "--out", tmp_path / "b.html")
    assert found["rows"] == {"from": "the validation rows of val.jsonl", "count": 8}
    card = json.loads(place.done("library", "show", "b", "--json").stdout)
    assert found["metrics"] == pytest.approx(card["metrics"]["validation"])


def test_rows_of_an_ensemble(place: Place, tmp_path: Path):
    asked = ("--ensemble", "2", "--max-steps", "2", "--method", "norms", "--base", place.base)
    place.done("train", place.root / "rows.jsonl", "--name", "parts", "--test-size", "8", *asked)
    found = place.report("parts", "--out", tmp_path / "f.html")
    assert found["rows"] == {"from": "the test rows of rows.jsonl", "count": 8}
    card = json.loads(place.done("library", "show", "parts", "--json").stdout)
    assert found["metrics"] == pytest.approx(card["metrics"]["test"])
    done = place.done("report", "parts", "--split", "validation", "--out", tmp_path / "f.html")
    assert "parts learned from all its rows, each left out once to score it" in done.stdout


@pytest.mark.full
def test_data_versions_and_rows(place: Place, tmp_path: Path):
    place.done("library", "alias", "a", "prod", "1")
    val = place.root / "val.jsonl"
    found = place.report("a@prod", place.root / "new.jsonl", "--rows", "6", "--out", tmp_path / "f.html")
    assert found["rows"]["count"] == 6
    assert (found["name"], found["version"]) == ("a", 1)
    assert "<small>@prod</small>" in found["html"]
    whole = place.report("a", place.root / "new.jsonl", "--out", tmp_path / "f.html")
    evaluated = json.loads(place.done("eval", "a", place.root / "new.jsonl", "--json").stdout)
    assert whole["metrics"] == evaluated["metrics"]
    own, given = (place.report("b", *data, "--rows", "4", "--out", tmp_path / "f.html") for data in ((), (val,)))
    assert (own["metrics"], own["mistakes"]) == (given["metrics"], given["mistakes"])  # the same rows


@pytest.mark.full
def test_rows_that_have_changed_are_not_used(place: Place, tmp_path: Path):
    file = place.root / "rows.jsonl"
    before = file.read_text()
    try:
        place.write("rows", work.texts(24, 9))
        done = place.done("report", "a", "--out", tmp_path / "f.html", "--json")
        assert "rows.jsonl has changed since a was trained on it" in done.stderr
        assert json.loads(done.stdout)["metrics"] is None
        assert "has changed since" in (tmp_path / "f.html").read_text()
        file.unlink()
        assert json.loads(place.done("report", "a", "--out", tmp_path / "f.html", "--json").stdout)["metrics"] is None
        assert place.call("report", "--compare", "a", "b").exit_code == 1
    finally:
        file.write_text(before)


def test_two(place: Place, tmp_path: Path):
    found = place.report("--compare", "a", "b", place.root / "new.jsonl", "--out", tmp_path / "f.html")
    assert found["names"] == ["a@1", "b@1"]
    assert found["verdict"] in found["html"]
    assert found["rows"]["count"] == 12
    done = place.done("report", "--compare", "a", "b", place.root / "new.jsonl", "--out", tmp_path / "f.html")
    assert f"both on {found['rows']['from']}, 12 rows\n{found['verdict']}\n" in done.stdout


def test_two_without_rows_say_why_once(place: Place, tmp_path: Path):
    file = place.root / "rows.jsonl"
    file.rename(tmp_path / "away")
    try:
        done = place.call("report", "--compare", "a", "b")
        assert "left out: " in place.done("report", "a", "--out", tmp_path / "f.html").stdout
    finally:
        (tmp_path / "away").rename(file)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: a comparison needs labelled rows: ")
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nobody",), 1, "no adapter 'nobody'"),
        (("a", "nothing.csv"), 1, "nothing.csv"),
        (("a", "b", "c"), 2, "--compare"),
        (("--compare", "a"), 2, "A B [DATA]"),
        (("--compare", "a", "a"), 2, "twice"),
    ],
)
def test_mistakes(place: Place, words: tuple[str, ...], code: int, said: str):
    done = place.call("report", *words)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    assert said in " ".join(done.stderr.split())
