"""`inlay compare`: what it prints and writes, datasets of several kinds, going on, mistakes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from rich.console import Console
from training import work
from typer.testing import CliRunner

from inlay.cli.compare_display import blocks
from inlay.cli.main import app
from inlay.cli.train_display import show_done
from inlay.library.library import Library

QUICK = ("--max-steps", "2", "--batch-size", "4", "--baseline-trials", "1")
METHODS = "houlsby:size=4,houlsby:size=8,bitfit,finetune:top=1"


@dataclass(frozen=True)
class Place:
    base: str
    folder: Path

    def call(self, *arguments: Any, width: int = 200) -> Any:
        where = ["--base", self.base, "--library", str(self.folder / "library")]
        return CliRunner().invoke(app, ["compare", *map(str, arguments), *where], env={"COLUMNS": str(width)})

    def document(self, *arguments: Any) -> Any:
        done = self.call(*arguments, *QUICK, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any, code: int = 1) -> str:
        done = self.call(*arguments)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit)
        assert code == 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1)
        return " ".join(done.stderr.split())

    def write(self, name: str, rows: list[dict[str, Any]]) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("compare") / "base")


@pytest.fixture
def place(base: str, tmp_path: Path) -> Place:
    return Place(base, tmp_path)


@pytest.fixture
def data(place: Place) -> list[str]:
    """A file, and a folder with test rows."""
    for split, seed in (("train", 1), ("validation", 2), ("test", 3)):
        place.write(f"split/{split}.jsonl", work.texts(24, seed))
    return [place.write("rows.jsonl", work.texts(30)), str(place.folder / "split")]


def test_the_contract(place: Place, data: list[str]):
    files = [place.folder / name for name in ("c.csv", "c.tex")]
    how = ("--methods", METHODS, "--seeds", "2", "--task-count", "9", "--csv", files[0], "--latex", files[1])
    done = place.call(*data, *how, *QUICK)
    assert done.exit_code == 0, done.output
    assert "comparison: 16 runs: 4 methods, 1 setting, 2 seeds, 2 datasets" in done.stdout
    assert "rows: classification, 27 to train, 3 to validate; accuracy, reported on validation rows" in done.stdout
    assert "24 to test; accuracy, reported on test rows" in done.stdout
    assert "16/16 " in done.stdout
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("method"))
    assert [lines[at - 2].split(), lines[at - 1].split()] == [["rows", "split"], ["accuracy", "accuracy"]]
    columns = [column.strip() for column in lines[at].split("  ") if column]
    cost = ["method", "parameters", "of base", "9 tasks", "size", "seconds"]
    assert columns == [*cost, "validation", "test", "average", "against the best"]
    assert {line.split()[0] for line in lines[at + 2 : at + 8]} == {*METHODS.split(","), "majority", "tf-idf"}
    assert "paired sign-flip test over seeds and datasets, Holm-corrected" in done.stdout
    assert "4 pairs of runs (datasets times seeds) are too few to tell 6 lines apart" in done.stdout
    assert "no test rows (rows)" in done.stdout
    with files[0].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 6 * 2 * 2
    assert files[1].read_text().count(r"\\") == 7
    assert (place.folder / "library" / "comparisons" / "rows-split.sqlite").exists()
    assert Library(place.folder / "library").names() == []


def test_the_document_and_going_on(place: Place, data: list[str]):
    pytest.importorskip("matplotlib")
    how = (*data, "--methods", "bitfit,norms", "--grid", "lr=1e-3,1e-2", "--seeds", "1", "--name", "mine")
    found = place.document(*how)
    assert (found["name"], found["settings"], found["seeds"], found["tasks"]) == ("mine", 2, [0], 2)
    assert [one["split"] for one in found["datasets"]] == ["validation", "test"]
    assert {one["method"] for one in found["methods"]} == {"bitfit", "norms", "majority", "tf-idf"}
    assert found["methods"][0]["verdict"] == "best"
    assert found["best"] == found["methods"][0]["method"]
    assert len(found["runs"]) == 8
    again = place.call(*how, *QUICK, "--json", "--plot", place.folder / "c.svg")
    assert json.loads(again.stdout) == found
    assert "8 of them are already done and are not repeated" in again.stderr
    assert "tf-idf seed=0" not in again.stderr
    assert "relative to" in (place.folder / "c.svg").read_text()


@pytest.mark.parametrize(("done", "said"), [(0, ""), (1, "1 of them is"), (2, "2 of them are")])
def test_what_need_not_be_run_is_counted(done: int, said: str):
    told, rows = io.StringIO(), [SimpleNamespace(state="done")] * done + [SimpleNamespace(state="running")]
    show_done(Console(file=told), rows)  # type: ignore[arg-type]
    assert told.getvalue().partition(" already done")[0] == said


def test_settings_of_train_are_taken_and_baselines_left_out(place: Place, data: list[str]):
    found = place.document(
        data[0], "--methods", "bitfit", "--seeds", "1", "--no-baselines", "--no-dropout", "--seed", "4", "--lr", "0.01"
    )
    assert [one["method"] for one in found["methods"]] == ["bitfit"]
    assert found["seeds"] == [4]
    assert found["store"] == str(place.folder / "library" / "comparisons" / "rows.sqlite")


def test_a_manifest_gives_datasets_settings_of_their_own(place: Place):
    place.write("one.jsonl", work.texts(24))
    place.write("two.jsonl", [{"what": row["text"], "is": row["label"]} for row in work.texts(24, 1)])
    (place.folder / "m.toml").write_text(
        '[defaults]\nmax_steps = 2\n[tasks.one]\ndata = "one.jsonl"\n'
        '[tasks.two]\ndata = "two.jsonl"\ntext = "what"\nlabel = "is"\n'
    )
    how = ("--methods", "bitfit", "--seeds", "1", "--no-baselines", "--json")
    done = place.call("--manifest", place.folder / "m.toml", *how)
    assert done.exit_code == 0, done.output
    assert [one["name"] for one in json.loads(done.stdout)["datasets"]] == ["one", "two"]
    assert "set it there" in place.fails("--manifest", place.folder / "m.toml", "--epochs", "2", code=2)


def test_everything_wrong_is_said_together_before_anything_starts(place: Place, data: list[str]):
    """In three stages: what needs no torch, what needs no base, and the rest."""
    bad = place.write("bad.jsonl", [{"a": "x", "b": "y"}] * 4)
    said = place.fails(data[0], "nothing.csv", bad, "--label", "labell", "--grid", "lr")
    for part in ("nothing.csv", "bad.jsonl", "labell", "'lr' is not key=a,b,c"):
        assert part in said, part
    said = place.fails(data[0], "--methods", "houlsby:size=x", "--grid", "sise=4")
    assert "size=x is not valid" in said
    assert "sise" in said
    assert "top9" in place.fails(data[0], "--methods", "bitfit:layers=top9")
    assert not (place.folder / "library").exists()


def test_an_engine_that_is_not_there(place: Place, data: list[str]):
    assert "unknown engine 'rai'" in place.fails(data[0], "--engine", "rai", code=2)
    assert "--address needs --engine ray" in place.fails(data[0], "--address", "x:1")


def test_wrong_usage(place: Place, data: list[str]):
    assert "give DATA or --manifest" in place.fails(code=2)
    assert "--test is for a single dataset" in place.fails(*data, "--test", data[0], code=2)
    assert "--methods: unknown method 'houlsbi'" in place.fails(data[0], "--methods", "houlsbi", code=2)
    assert "--epochs: " in place.fails(data[0], "--epochs", "-1", code=2)


def test_runs_that_all_fail(place: Place, data: list[str]):
    how = ("--methods", "houlsby", "--seeds", "1", "--lr", "1e30", "--max-steps", "6", "--batch-size", "4")
    done = place.call(data[0], *how, "--baseline-trials", "1")
    assert done.exit_code == 1
    assert "rows houlsby failed: " in done.stdout


def test_columns_are_cut_into_tables_that_fit():
    columns = ["method", "a\nlonger", "b", "c" * 30]
    lines = [["houlsby", "1", "2", "3"]]
    assert blocks(columns, lines, 200) == [[0, 1, 2, 3]]
    assert blocks(columns, lines, 30) == [[0, 1, 2], [0, 3]]
    assert blocks(columns, lines, 5) == [[0, 1], [0, 2], [0, 3]]
