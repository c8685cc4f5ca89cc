"""`inlay sweep`: the contract, what it prints and writes, files of settings, stopping and going on, mistakes."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
from rich.console import Console
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.cli.sweep_display import SweepProgress
from inlay.library.library import Library
from inlay.runs.run import from_config
from inlay.training.step import Step

QUICK = ("--max-steps", "2", "--batch-size", "4")
CONTRACT = ("--grid", "lr=3e-4,1e-3", "--grid", "method=houlsby:size=8,houlsby:size=64,adapterbias", "--seeds", "3")


@dataclass(frozen=True)
class Place:
    base: str
    folder: Path
    data: str

    @property
    def library(self) -> Library:
        return Library(self.folder / "library")

    @property
    def store(self) -> Path:
        return self.folder / "library" / "sweeps" / "mine.sqlite"

    def call(self, *arguments: Any, width: int = 100) -> Any:
        where = ["--base", self.base, "--library", str(self.library.root)]
        return CliRunner().invoke(app, ["sweep", *map(str, arguments), *where], env={"COLUMNS": str(width)})

    def sweep(self, *arguments: Any) -> Any:
        """The JSON document of a sweep that went well."""
        done = self.call(self.data, "--name", "mine", *QUICK, *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any, code: int = 1) -> str:
        done = self.call(*arguments)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit)
        assert code == 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1)
        return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("sweep") / "base")


@pytest.fixture
def place(base: str, tmp_path: Path) -> Place:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(30)), encoding="utf-8")
    return Place(base, tmp_path, str(data))


# --- what comes of it ---------------------------------------------------------------------------------------------


def test_the_contract(place: Place):
    files = [place.folder / name for name in ("s.csv", "s.tex")]
    done = place.call(place.data, "--name", "mine", *CONTRACT, *QUICK, "--csv", files[0], "--latex", files[1])
    assert done.exit_code == 0, done.output
    assert "sweep: 18 runs, 6 settings with 3 seeds, varying method, lr" in done.stdout
    assert "18/18 " in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100 or max(lines, key=len).startswith(("18 done", "guessed", "base"))
    at = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert lines[at].split() == ["rank", "method", "lr", "accuracy", "seconds", "parameters"]
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[at + 2 : at + 8]]
    assert [row[0] for row in rows] == list("123456")
    assert {row[1] for row in rows} == {"houlsby:size=8", "houlsby:size=64", "adapterbias"}
    assert all(re.fullmatch(r"0\.\d{4} ± 0\.\d{4}", row[3]) for row in rows)
    means = [float(row[3].split()[0]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert "--best saves it to the library" in done.stdout
    assert place.store.exists()
    with files[0].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 18
    assert files[1].read_text().count(r"\\") == 7
    assert place.library.names() == []


def test_the_document(place: Place):
    found = place.sweep("--grid", "lr=1e-3,1e-2", "--seeds", "2", "--best")
    assert (found["name"], found["version"], found["metric"], found["select"]) == ("mine", 1, "accuracy", "careful")
    assert (len(found["ranking"]), len(found["runs"])) == (2, 4)
    assert found["best"]["setting"] == found["winner"]["setting"] == {"method": "houlsby", "lr": 1e-3}  # the default
    assert found["best"]["id"] == found["winner"]["id"]
    assert found["best"]["config"]["lr"] == found["best"]["setting"]["lr"]
    assert found["store"] == str(place.store)
    card = place.library.find("mine").card
    assert card["sweep"]["runs"] == 4
    assert card["parents"] == [f"sweep:{found['best']['id']}"]
    assert from_config(card["config"]) == from_config(found["best"]["config"])


def test_the_winner_answers_and_its_card_can_be_read(place: Place):
    place.sweep("--grid", "lr=1e-3,1e-2", "--best")
    where = ["--library", str(place.library.root)]
    answered = CliRunner().invoke(app, ["predict", "mine", "a good film", "--json", "--base", place.base, *where])
    assert answered.exit_code == 0, answered.output
    shown = CliRunner().invoke(app, ["library", "show", "mine", *where])
    assert shown.exit_code == 0, shown.output
    assert "sweep:" in shown.output


def test_plot(place: Place):
    pytest.importorskip("matplotlib")
    place.sweep("--grid", "lr=1e-3,1e-2", "--plot", place.folder / "s.svg")
    assert "validation accuracy" in (place.folder / "s.svg").read_text()


def test_test_rows_are_shown_and_do_not_decide(place: Place):
    found = place.sweep("--grid", "lr=1e-3,1e-2", "--test", place.data)
    assert all("test" in run["metrics"] for run in found["runs"])
    values = [entry["mean"] for entry in found["ranking"]]
    assert values == sorted(values, reverse=True)
    done = place.call(place.data, "--name", "mine", *QUICK, "--grid", "lr=1e-3,1e-2", "--test", place.data)
    assert "test accuracy" in done.stdout


def test_settings_of_train_are_taken(place: Place):
    found = place.sweep(
        "--grid", "lr=1e-3", "--no-dropout", "--no-stratify", "--head", "mlp", "--seed", "4", "--patience", "2"
    )
    config = found["best"]["config"]
    assert (config["dropout"], config["stratify"], config["head"]) == (False, False, "mlp")
    assert (config["seed"], config["patience"]) == (4, 2)


def test_random(place: Place):
    found = place.sweep("--grid", "lr=1e-4..1e-2", "--grid", "size=4..8", "--random", "3")
    assert len(found["runs"]) == 3
    assert all(1e-4 <= run["setting"]["lr"] <= 1e-2 for run in found["runs"])


def test_search(place: Place):
    pytest.importorskip("optuna")
    how = ("--grid", "lr=1e-4..1e-2", "--search", "optuna", "--trials", "3", "--pruner", "none")
    found = place.sweep(*how)
    assert len(found["runs"]) == 3
    again = place.sweep(*how[:-3], "5", *how[-2:])
    assert [run["id"] for run in again["runs"][:3]] == [run["id"] for run in found["runs"]]
    assert len(again["runs"]) == 5


def test_settings_that_are_scored_on_different_rows_are_named(place: Place):
    few = (place.data, "--name", "apart", *QUICK, "--grid", "few_shot=true,false", "--few-shot-steps", 1)
    said = " ".join(place.call(*few).output.split())
    apart = "few_shot=true is scored by 5 folds, few_shot=false by rows that are held out"
    assert f"{apart}: such scores cannot be compared; pass --folds 5 to score all alike" in said
    assert " rows to train, scored by 5 folds; ranked by " in said
    assert "cannot be compared" not in " ".join(place.call(*few, "--folds", 5).output.split())


def test_select_best(place: Place):
    found = place.sweep("--grid", "lr=1e-3,1e-2", "--seeds", "2", "--select", "best")
    assert found["best"]["best"] == max(run["value"] for run in found["runs"])


# --- a file -------------------------------------------------------------------------------------------------------


def test_a_file_means_what_the_command_line_means(place: Place):
    line = place.sweep("--grid", "lr=1e-3,1e-2", "--grid", "method=houlsby:size=4,init=0.1,norms", "--seeds", "2")
    (place.folder / "sweep.toml").write_text(
        'data = "rows.jsonl"\nname = "mine"\nseeds = 2\n[settings]\nmax_steps = 2\nbatch_size = 4\n'
        '[grid]\nlr = [1e-3, 1e-2]\nmethod = ["houlsby:size=4,init=0.1", "norms"]\n'
    )
    done = place.call("--manifest", place.folder / "sweep.toml", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [run["id"] for run in found["runs"]] == [run["id"] for run in line["runs"]]
    assert "8 of them are already done and are not repeated" in done.stderr


def test_everything_wrong_with_a_file_is_said_together(place: Place):
    (place.folder / "sweep.toml").write_text(
        'seedz = 2\nseeds = 0\nreport = 5\n[settings]\nepochz = 2\n[grid]\nlr = []\nsise = [4]\nlayers = ["top9"]\n'
    )
    said = place.fails("--manifest", place.folder / "sweep.toml")
    for part in (
        "'seedz'. Did you mean seeds",
        "seeds=0",
        "report=5",
        "epochz",
        "lr has no values",
        "sise",
        "'data' is missing",
    ):
        assert part in said, part
    assert not place.store.parent.exists()


@pytest.mark.parametrize("content", ["x = [", "\xff", "grid = 3", "data = 5\n[grid]\nlr = [1e-3, 1e-2]"])
def test_files_that_are_none(place: Place, content: str):
    (place.folder / "sweep.toml").write_bytes(content.encode("latin-1"))
    assert "sweep.toml: " in place.fails("--manifest", place.folder / "sweep.toml")


@pytest.mark.parametrize(
    "extra", [["rows.jsonl"], ["--name", "x"], ["--grid", "lr=1"], ["--lr", "1"], ["--seeds", "2"]]
)
def test_what_does_not_go_with_a_file(place: Place, extra: list[str]):
    said = place.fails("--manifest", "sweep.toml", *extra, code=2)
    assert "cannot be combined with --manifest" in said


# --- stopping and going on ----------------------------------------------------------------------------------------


def test_a_sweep_that_is_stopped_says_how_to_go_on(place: Place, monkeypatch: pytest.MonkeyPatch):
    steps = 0
    step = Step.__call__

    def interrupt(self: Any, *a: Any, **k: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            import signal

            signal.raise_signal(signal.SIGINT)
        return step(self, *a, **k)

    monkeypatch.setattr(Step, "__call__", interrupt)
    how = (place.data, "--name", "mine", *QUICK, "--grid", "lr=1e-3,1e-2", "--slots", "1")
    monkeypatch.setattr("sys.argv", ["inlay", "sweep", *map(str, how), "--restart"])
    done = place.call(*how)
    assert done.exit_code == 130, done.output
    assert f"stopped; finished work is saved. To continue:\n  inlay sweep {place.data} --name mine " in done.stdout
    assert "--restart" not in done.stdout
    monkeypatch.setattr(Step, "__call__", step)
    found = place.sweep("--grid", "lr=1e-3,1e-2", "--slots", "1")
    assert [run["state"] for run in found["runs"]] == ["done", "done"]


def test_called_again_it_only_ranks_and_restart_forgets(place: Place):
    how = ("--grid", "lr=1e-3,1e-2")
    first = place.sweep(*how)
    done = place.call(place.data, "--name", "mine", *QUICK, *how)
    assert "2 of them are already done" in done.stdout
    assert "2/2 " not in done.stdout
    done = place.call(place.data, "--name", "mine", *QUICK, *how, "--restart", "--json")
    assert "done already" not in done.stderr
    assert [run["value"] for run in json.loads(done.stdout)["runs"]] == [run["value"] for run in first["runs"]]


def test_restart_leaves_other_files_alone(place: Place):
    other = place.folder / "other.db"
    other.write_text("mine\n" * 100)
    said = place.fails(place.data, "--grid", "lr=1e-3", "--store", other, "--restart")
    assert "cannot be used as the file of a sweep" in said
    assert other.read_text() == "mine\n" * 100


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_a_bad_grid_is_reported_as_a_whole_before_anything_starts(place: Place):
    """In three stages: what needs no torch, what needs no base, and the rest."""

    def fails(*grid: str) -> str:
        return place.fails(place.data, "--name", "mine", *[word for one in grid for word in ("--grid", one)])

    said = fails("method=houlsby,houlsbi", "head=lineer", "epochs=2", "epochs=3", "lr")
    assert "'houlsbi'. Did you mean houlsby" in said
    assert "'lineer'. Did you mean linear" in said
    assert "epochs is given twice" in said
    assert "'lr' is not key=a,b,c" in said
    said = fails("lrr=1", "lr=", "epochs=x", "depth=", "size=0,8")
    assert "'lrr' to vary. Did you mean lr" in said
    assert "lr has no values" in said
    assert "epochs='x'" in said
    assert "depth has no values" in said
    assert "size=0" in said
    assert "top9" in fails("layers=top9")
    assert not place.store.parent.exists()


def test_other_mistakes(place: Place):
    assert "give DATA or --manifest" in place.fails(code=2)
    assert "a search needs a number of trials" in place.fails(place.data, "--grid", "lr=1,2", "--search", "optuna")
    assert "lr is both set to 0.5 and in the grid" in place.fails(place.data, "--lr", "0.5", "--grid", "lr=1,2")
    assert "decay=weights is for finetune" in place.fails(place.data, "--grid", "decay=weights,difference")
    assert "is not there" in (said := place.fails("nothing.csv", "--grid", "lr=1")) or "nothing.csv" in said


def test_runs_that_all_fail(place: Place):
    done = place.call(place.data, "--name", "mine", *QUICK, "--grid", "lr=1e30,1e31", "--max-steps", "6")
    assert done.exit_code == 1
    assert "2 failed" in done.stdout
    assert " failed: the loss is nan at step " in done.stdout or " failed: the loss is inf at step " in done.stdout
    assert "lower learning rate" in done.stdout


# --- the live table -----------------------------------------------------------------------------------------------


@dataclass
class Planned:
    """As much of a sweep as the table wants to know."""

    runs: int = 4
    metric: str = "accuracy"

    def result(self) -> Any:
        @dataclass
        class Rows:
            rows: tuple[Any, ...] = ()

        return Rows()


def test_slots_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch):
    screen = Console(file=io.StringIO(), width=100, force_terminal=False)
    now = 0.0
    monkeypatch.setattr("inlay.tracking.progress.time.monotonic", lambda: now)
    progress = SweepProgress(screen, Planned())  # type: ignore[arg-type]
    for name in ("a", "b"):
        progress({"event": "begin", "run": name, "steps": 10, "step": 0})
    for step in range(1, 6):
        now = float(step)
        for name in ("a", "b"):
            progress({"event": "step", "run": name, "step": step, "loss": 0.5, "lr": 0.1})
    assert progress.left(now) == pytest.approx(15.0)  # 2 steps a second; 10 under way and 20 to come
    progress({"event": "eval", "run": "a", "step": 5, "loss": 0.4, "metrics": {"f1": 0.1, "accuracy": 0.75}})
    progress({"event": "pruned", "run": "a"})
    progress({"event": "done", "run": "b", "metrics": {"validation": {"accuracy": 0.5}}})
    assert progress.caption(now) == "2 of 4 runs ended, 1 pruned, 0:05, 0:10 left"
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert said == "1/4 a: pruned after step 5, accuracy 0.7500\n2/4 b: accuracy 0.5000\n"
