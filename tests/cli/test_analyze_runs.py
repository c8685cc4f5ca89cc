"""`inlay analyze size, init, tradeoff, robustness, train-size, curves`: from files, or sweeping by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.analyze.runs import SWEEPS, _defaults
from inlay.cli.main import app

pytest.importorskip("matplotlib")
QUICK = ("--max-steps", "2", "--batch-size", "4", "--eval-every", "1")


class Place:
    """A folder with rows, and a library with a sweep of several methods and an adapter."""

    def __init__(self, root: Path):
        self.root = root
        self.base = tiny.save_text_model(root / "base")
        self.data = root / "rows.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(30)), encoding="utf-8")
        asked = ("--grid", "method=houlsby:size=2,houlsby:size=4,norms", "--grid", "lr=1e-3,1e-2", "--seeds", "2")
        self.done("sweep", self.data, "--name", "mine", *QUICK, *asked, "--base", self.base, "--best")

    def call(self, *arguments: Any) -> Any:
        words = [*map(str, arguments), "--library", str(self.root / "library")]
        return CliRunner().invoke(app, words, env={"COLUMNS": "100"})

    def done(self, *arguments: Any) -> Any:
        done = self.call(*arguments)
        assert done.exit_code == 0, done.output
        return done

    def analyze(self, kind: str, *arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done("analyze", kind, *arguments, "--json").stdout)
        assert found["kind"] == kind
        assert [Path(file).suffix for file in found["files"]] == [".png", ".svg", ".csv"]
        assert all(Path(file).stat().st_size for file in found["files"])
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("analyze"))


@pytest.mark.thin(1)
@pytest.mark.parametrize(("kind", "rows"), [("size", 4), ("robustness", 9), ("tradeoff", 3), ("curves", 12)])
def test_from_a_sweep(place: Place, tmp_path: Path, kind: str, rows: int):
    found = place.analyze(kind, "mine", "--out", tmp_path / "f")
    assert len(found["rows"]) == rows
    file = place.root / "library" / "sweeps" / "mine.sqlite"
    assert place.analyze(kind, file, "--out", tmp_path / "g")["rows"] == found["rows"]


def test_files_are_called_by_name_and_kind(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "written: mine-size.png" in place.done("analyze", "size", "mine").stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-size.csv", "mine-size.png", "mine-size.svg"]


def test_an_adapter_has_curves_too(place: Place, tmp_path: Path):
    found = place.analyze("curves", "mine@1", "--out", tmp_path / "f")
    assert [row["step"] for row in found["rows"]] == [1, 2]
    both = place.analyze("curves", "mine@1, mine", "--out", tmp_path / "f")
    assert len(both["rows"]) > len(found["rows"])


@pytest.mark.full
def test_with_data_it_sweeps_first_and_then_goes_on_from_there(place: Place, tmp_path: Path):
    asked = ("init", "own", place.data, *QUICK, "--base", place.base, "--seeds", "1", "--grid", "init=1e-3,1")
    found = place.analyze(*asked, "--out", tmp_path / "f")
    assert [row["init"] for row in found["rows"]] == [1e-3, 1]
    again = place.done("analyze", *asked, "--out", tmp_path / "f")
    assert "2 of them are already done" in again.stdout
    assert place.analyze("init", "own", "--out", tmp_path / "g")["rows"] == found["rows"]


def test_a_sweep_that_is_stopped_ends_the_command(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(runner: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inlay.sweeps.api.SweepRunner.run", stopped)
    done = place.call("analyze", "size", "halted", place.data, *QUICK, "--base", place.base, "--out", tmp_path / "f")
    assert done.exit_code == 130
    assert "stopped; finished work is saved" in done.output
    assert "error:" not in done.output


@pytest.mark.full
def test_what_a_figure_varies_by_itself(place: Place, tmp_path: Path):
    asked = (place.data, *QUICK, "--base", place.base, "--out", tmp_path / "f")
    found = place.analyze("size", "alone", *asked, "--seeds", "1", "--grid", "size=2,4")
    assert {(row["size"], row["lr"]) for row in found["rows"]} == {(s, lr) for s in (2, 4) for lr in (3e-4, 1e-3, 3e-3)}
    found = place.analyze("robustness", "both", *asked, "--seeds", "2", "--grid", "lr=1e-3")
    assert {row["method"] for row in found["rows"]} == {"houlsby", "finetune"}


def test_only_what_is_varied_replaces_a_default():
    rates = ["--grid", "lr=3e-4,1e-3,3e-3"]
    assert _defaults(SWEEPS["size"], ["--batch-size=4", "--pretrain-lr=1", "--seeds", "1"]) == [
        *("--grid", "size=1,4,16,64,256", *rates)
    ]
    for words in (["--grid", "size=2,4"], ["--grid=size=2,4"], ["--method", "houlsby:size=8"]):
        assert _defaults(SWEEPS["size"], [*words, "--seeds", "1"]) == rates
    assert "train_size=100,300,1000,none" not in _defaults(SWEEPS["train-size"], ["--train-size", "50"])
    assert "--seeds" not in _defaults(SWEEPS["size"], ["--seeds=1"])


def test_mistakes(place: Place):
    def fails(*arguments: Any, code: int = 1) -> str:
        done = place.call("analyze", *arguments)
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.output
        return " ".join(done.stderr.split())

    assert "no sweep 'mein'" in (said := fails("size", "mein"))
    assert "there are" in said
    assert "mine" in said
    assert "no adapter 'mein'" in fails("curves", "mein")
    assert "is not the file of a sweep" in fails("size", place.data)
    assert "no method in this sweep has the option init" not in fails("init", "mine")  # houlsby has it
    assert "all runs have init=0.01" in fails("init", "mine")
    assert "no DATA was given" in fails("size", "mine", "--lr", "1", code=2)
    assert "--store cannot be used for a figure" in fails("size", "new", place.data, "--store", "x", code=2)
    assert "no such option" in fails("size", "new", place.data, "--sise", "3", code=2)
    assert "no setting or option 'sise' to vary" in fails("size", "new", place.data, "--grid", "sise=3")
