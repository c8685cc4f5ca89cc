"""`inlay sweep --ensemble`: what it prints, its document, its card, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.library.library import Library

HOW = ("--max-steps", "12", "--batch-size", "8", "--val-size", "24", "--grid", "lr=1e-3,3e-2", "--seeds", "2")


class Place:
    def __init__(self, root: Path):
        self.root, self.base = root, tiny.save_text_model(root / "base")
        for name, rows in (("tone", work.texts(60)), ("test", work.texts(20, seed=5))):
            (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def call(self, *arguments: Any, code: int = 0) -> Any:
        where = ["--library", str(self.root / "library")]
        done = CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "100"})
        assert done.exit_code == code, done.output
        return done

    def sweep(self, *arguments: Any, code: int = 0) -> Any:
        files = (self.root / "tone.jsonl", "--test", self.root / "test.jsonl")
        return self.call("sweep", *files, *HOW, "--base", self.base, *arguments, code=code)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep-ensemble"))


def test_a_sweep_gives_an_ensemble(place: Place):
    said = place.sweep("--ensemble", 4, "--best").stdout
    assert "ensemble by validation loss, 4 picks among 4 runs: " in said
    assert "validation accuracy: " in said
    assert "test accuracy: 0." in said
    assert ", the winner alone 0." in said
    assert "tone@1: saved to " in said
    document = json.loads(place.sweep("--ensemble", 4, "--best", "--json").stdout)
    chosen = document["ensemble"]
    assert (chosen["picks"], chosen["candidates"], chosen["by"]) == (4, 4, "loss")
    assert sum(member["count"] for member in chosen["members"]) == 4
    assert max(member["count"] for member in chosen["members"]) <= 2
    assert chosen["metrics"].keys() == chosen["single"].keys() == {"validation", "test"}
    assert document["version"] == 1, "the same sweep gives the same ensemble"
    assert document["winner"]["setting"] == document["best"]["setting"]
    card = Library(place.root / "library").find("tone").card
    assert card["weights"] == [member["count"] for member in chosen["members"]]
    assert card["sweep"]["ensemble"] == chosen
    (answer,) = json.loads(place.call("predict", "tone", "a good film", "--base", place.base, "--json").stdout)
    assert 0 <= answer["uncertainty"] <= 1
    shown = place.call("library", "show", "tone").stdout
    assert "again" not in shown, "no command trains it again but the sweep"
    measured = json.loads(place.call("eval", "tone", place.root / "test.jsonl", "--base", place.base, "--json").stdout)
    assert measured["metrics"]["accuracy"] == pytest.approx(chosen["metrics"]["test"]["accuracy"])


def test_without_it_there_is_one_adapter_and_a_sentence_says_why_it_wins(place: Place):
    said = " ".join(place.sweep("--name", "single", "--best").stdout.split())
    assert "is best by 0." in said or "is best and nearest to the defaults" in said
    assert "winner, its run with the lowest validation loss: lr=" in said
    assert "ensemble by" not in said
    document = json.loads(place.sweep("--name", "single", "--json").stdout)
    assert document["ensemble"] is None
    assert document["winner"]["why"] in said
    plain = json.loads(place.sweep("--name", "single", "--select", "mean", "--json").stdout)
    assert plain["winner"] is None
    assert plain["best"]["rank"] == 1


def test_in_a_file(place: Place):
    (place.root / "sweep.toml").write_text(
        'data = "tone.jsonl"\nname = "filed"\nensemble = 2\nselect = "mean"\n'
        "[settings]\nmax_steps = 2\n[grid]\nlr = [1e-3, 1e-2]\n"
    )
    done = place.call("sweep", "--manifest", place.root / "sweep.toml", "--base", place.base, "--json")
    assert json.loads(done.stdout)["ensemble"]["picks"] == 2
    done = place.call("sweep", "--manifest", place.root / "sweep.toml", "--ensemble", 2, code=2)
    assert "--ensemble cannot be combined with --manifest" in done.stderr


def test_mistakes(place: Place):
    assert "--ensemble" in place.sweep("--ensemble", 1, code=2).stderr
    said = place.sweep("--ensemble", 2, "--grid", "long=cut,windows", code=1).stderr
    assert said.startswith("error: long cannot vary with an ensemble (--ensemble)")
    assert "careful" in place.sweep("--select", "worst", code=2).stderr


def test_a_single_run_is_no_ensemble(place: Place):
    few = ("--max-steps", 2, "--val-size", 24, "--ensemble", 4, "--base", place.base)
    said = place.call("sweep", place.root / "tone.jsonl", "--name", "alone", *few).stdout
    assert "sweep: 1 run, 1 setting\n" in said
    assert "only one run has finished, so there is no ensemble" in said
    assert "picks" not in said


def test_runs_that_are_trained_again_for_an_ensemble_count_once(place: Place):
    place.sweep("--name", "again", "--split-seed", 0)
    said = place.sweep("--name", "again", "--split-seed", 0, "--ensemble", 4).stdout
    assert "seed=0: accuracy" in said, "a run that did not win has no adapter, and is trained again"
    assert "5/4" not in said
    assert "6/4" not in said
    assert "4/4 " in said


def test_the_card_of_an_ensemble_says_what_it_was_trained_on_and_who_chose_it(place: Place):
    place.sweep("--name", "card", "--ensemble", 4, "--best")
    shown = " ".join(place.call("library", "show", "card").stdout.split())
    assert "tone.jsonl" in shown
    assert "its members were chosen on the validation rows, so the score is slightly optimistic" in shown
    place.call("report", "card", "--base", place.base, "--out", place.root / "card.html")
    assert "Sections that need labelled rows are left out" not in (place.root / "card.html").read_text("utf-8")
