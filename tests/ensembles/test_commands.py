"""An ensemble from the shell: made, listed, shown, asked, measured, reported, and refused."""

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


class Place:
    """A library with two versions of an adapter and an ensemble of them."""

    def __init__(self, root: Path):
        self.root = root
        base = tiny.save_text_model(root / "base")
        self.data = root / "tone.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(30)), encoding="utf-8")
        for seed in (1, 2):
            self.call("train", self.data, "--name", "tone", "--seed", seed, "--max-steps", 3, "--base", base)
        self.made = self.document("library", "ensemble", "both", "--of", "tone@1,tone@2,tone@2")

    def call(self, *arguments: Any, code: int = 0) -> Any:
        where = ["--library", str(self.root / "library")]
        done = CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "100"})
        assert done.exit_code == code, done.output
        return done

    def document(self, *arguments: Any) -> Any:
        return json.loads(self.call(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("ensembles"))


def test_what_the_card_says(place: Place):
    made = place.made
    assert (made["name"], made["version"], made["method"], made["weights"]) == ("both", 1, "ensemble", [1, 2])
    assert [member["ref"] for member in made["members"]] == ["tone@1", "tone@2"]
    cards = [place.document("library", "show", f"tone@{version}") for version in (1, 2)]
    assert made["parameters"]["adapter"] == sum(card["parameters"]["adapter"] for card in cards)
    assert "metrics" not in made
    listed = place.call("library", "list").stdout
    assert "both@1" in listed
    assert "ensemble" in listed
    stored = sum(file.stat().st_size for file in (place.root / "library" / "blobs").iterdir())
    every = place.call("library", "list", "--all-versions").stdout
    assert f"all 3 versions: {stored / 1000:.1f} kB\n" in every  # the members' files are there once
    shown = " ".join(place.call("library", "show", "both").stdout.split())
    assert "tone@2, houlsby, counts 2 times" in shown
    assert "both is intact" in place.call("library", "verify", "both").stdout


def test_it_is_asked_and_measured(place: Place):
    (answer,) = place.document("predict", "both", "a fine film")
    own = [place.document("predict", f"tone@{version}", "a fine film")[0]["scores"] for version in (1, 2)]
    assert answer["scores"] == pytest.approx({k: (own[0][k] + 2 * own[1][k]) / 3 for k in own[0]}, abs=1e-4)
    assert place.document("predict", "both", "a fine film", "--threshold", "uncertainty=0")[0]["label"] is None
    out = place.root / "out.jsonl"
    place.call("predict", "both", "--file", place.data, "--out", out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 30
    assert all(0 <= line["uncertainty"] <= 1 for line in lines)
    table = place.root / "out.csv"
    place.call("predict", "both", "--file", place.data, "--out", table)
    said = [float(line["uncertainty"]) for line in csv.DictReader(table.read_text().splitlines())]
    assert said == [line["uncertainty"] for line in lines]
    assert "uncertainty" in place.call("predict", "both", "a fine film").stdout
    found = place.document("eval", "both", place.data)
    right = sum(line["label"] == line["input_label"] for line in lines)
    assert (found["rows"], found["metrics"]["accuracy"]) == (30, pytest.approx(right / 30))
    assert found["trained_on"] is True  # its members have learned from these rows
    report = place.root / "report.html"
    place.call("report", "both", place.data, "--out", report)
    assert "both@1" in report.read_text()
    place.call("library", "diff", "both", "tone@1")


def test_what_is_refused(place: Place):
    for words, said in (
        (["library", "rm", "tone@1"], "tone@1 is a member of the ensemble both@1"),
        (["library", "ensemble", "x", "--of", "tone@1,tone@1"], "at least two different members, not 1"),
        (["library", "ensemble", "x", "--of", "both,tone"], "both@1 is an ensemble itself"),
        (["library", "export", "both", place.root / "x"], "is an ensemble of 2; it cannot be exported: name a member"),
        (["export", "onnx", "--tasks", "both", "--out", place.root / "x.onnx"], "both@1 is an ensemble of 2"),
        (["export", "merged", "both", "--out", place.root / "x"], "both@1 is an ensemble of 2"),
        (["analyze", "landscape", "both", place.data], "train one adapter on its answers (inlay train --teacher both)"),
        (["retrain", "both", "--base", place.root / "base"], "one task cannot be retrained"),
    ):
        done = place.call(*words, code=1)
        assert done.stderr.startswith("error: "), done.stderr
        assert said in done.stderr, (words, done.stderr)
        assert done.stdout == "" or words[0] == "retrain"  # before any work
    done = place.call("predict", "tone", "hello", "--threshold", "much", code=2)
    assert "--threshold" in done.stderr
