"""What is said beside a score: the majority, that nothing was learned, that the version before was better."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.cli.score_notes import majority, nothing_learned, worse
from inlay.comparison import baselines
from inlay.library.library import Library
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.result import Result
from inlay.tasks import Example, parse
from inlay.training.api import keep

SKEWED = [*work.texts(24), *({"text": f"{row['text']} {i}", "label": "pos"} for i, row in enumerate(work.texts(16)))]


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


@pytest.fixture(scope="module")
def data(host: inlay.Host) -> Prepared:
    return prepare(work.run(SKEWED, val_size=10), host)


def result(**metrics: dict[str, float]) -> Result:
    return Result("a", "houlsby", {}, "accuracy", metrics)


def test_the_majority_of_classes_tags_and_labels(host: inlay.Host, data: Prepared):
    always, scores = majority(data)
    share = sum(e.target == "pos" for e in data.validation.examples) / 10
    assert (always, scores["accuracy"], scores["matthews"]) == ("always 'pos'", share, 0.0)
    assert scores["f1_macro"] < scores["accuracy"]
    tags = prepare(work.run(work.entities()), host)
    assert majority(tags)[0] == "always 'O'"
    assert 0.5 < majority(tags)[1]["accuracy"] < 1
    assert majority(prepare(work.run(work.topics()), host))[0].startswith("always ")
    assert majority(prepare(work.run(work.ratings()), host)) == ("", {})


def test_the_majority_of_rows_that_are_evaluated():
    task, rows = parse("classification"), [Example("x", target=label) for label in ("b", "b", "a")]
    label, scores = baselines.majority(task, rows, ("a", "b")) or ("", {})
    assert (label, scores["accuracy"]) == ("b", 2 / 3)
    tagged = [Example(words=("x", "y", "z"), target=("O", "O", "B-A"))]
    assert (baselines.majority(parse("tagging"), tagged, ("B-A", "O")) or ("", {}))[1]["accuracy"] == 2 / 3
    assert baselines.majority(parse("regression"), [Example("x", target=1.0)], ("value",)) is None


def test_a_matthews_near_zero_draws_a_warning(host: inlay.Host, data: Prepared):
    said = nothing_learned(result(validation={"accuracy": 0.9, "f1_macro": 0.5, "matthews": 0.04}), data)
    assert said.startswith("the Matthews correlation on the validation rows is 0.0400 (guessing gives 0): hardly")
    for option in ("--class-weights", "--metric", "--epochs", "--lr"):
        assert option in said
    few = replace(data, run=data.run.model_copy(update={"few_shot": True}))
    said = nothing_learned(result(validation={"accuracy": 0.9, "f1_macro": 0.5, "matthews": 0.04}), few)
    assert said.endswith("--no-few-shot trains in the usual way, which may do better")
    assert "--epochs" not in said
    tags = prepare(work.run(work.entities()), host)
    said = nothing_learned(Result("a", "houlsby", {}, "f1", {"validation": {"f1": 0.0}}), tags)
    assert said == "f1 is 0: nothing was learned yet; try more epochs (--epochs) or a higher learning rate (--lr)"
    good = {"accuracy": 0.95, "f1_macro": 0.9, "matthews": 0.8}
    assert nothing_learned(result(validation=good), data) == ""
    assert "on the test rows is 0.0300" in nothing_learned(
        result(validation=good, test={**good, "matthews": 0.03}), data
    )
    assert "no better than always 'pos'" in nothing_learned(result(validation={**good, "accuracy": 0.5}), data)


def test_a_version_that_is_worse_on_the_same_rows_says_so(host: inlay.Host, tmp_path: Path):
    library = Library(tmp_path)
    run = work.run(name="mood", epochs=1)
    first = inlay.train(work.host(), run)
    values = {"validation": {**first.metrics["validation"], "accuracy": 0.9}}

    def kept(accuracy: float, split: dict[str, str] | None = None) -> Result:
        scored = {} if split is None else {"scored_on": split}
        found = {"validation": {**values["validation"], "accuracy": accuracy}}
        adapter = dataclasses.replace(first.adapter, about={**first.adapter.about, "metrics": found, **scored})
        return keep(dataclasses.replace(first, metrics=found, _adapter=adapter), library, host.base)

    one = kept(0.9)
    assert one.before is None
    two = kept(0.8)
    assert two.before == {"version": 1, "split": "validation", "value": 0.9, "now": 0.8}
    assert worse(two).startswith("worse than mood@1 on the same validation rows: accuracy 0.8000, before 0.9000; ")
    assert worse(two).endswith("inlay library rm mood@2 removes it")
    assert worse(kept(0.85)) == ""
    other = kept(0.1, {"validation": "another"})
    assert (other.before, worse(other)) == (None, "")


class Place:
    def __init__(self, root: Path):
        self.root, self.base = root, tiny.save_text_model(root / "base")
        self.data = root / "mood.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in SKEWED))

    def call(self, *arguments: Any) -> Any:
        where = ["--library", str(self.root / "library")]
        done = CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "120"})
        assert done.exit_code == 0, done.output
        return done


@pytest.mark.full
def test_train_manifest_and_eval_show_the_majority_and_macro_f1(tmp_path: Path):
    place = Place(tmp_path)
    quick = ("--max-steps", 1, "--base", place.base)
    out = place.call("train", place.data, "--name", "mood", *quick).stdout
    assert next(line.split() for line in out.splitlines() if "majority" in line) == ["validation", "majority"]
    assert "majority: always 'pos' on the validation rows" in out
    assert len(next(line for line in out.splitlines() if line.startswith("f1_macro")).split()) == 3
    again = json.loads(place.call("train", place.data, "--name", "mood", *quick, "--lr", 0.1, "--json").stdout)
    assert (again["before"]["version"], again["before"]["split"]) == (1, "validation")
    found = json.loads(place.call("eval", "mood", place.data, "--json").stdout)
    assert found["majority"]["label"] == "pos"
    assert "majority: always 'pos'" in place.call("eval", "mood", place.data).stdout
    manifest = tmp_path / "tasks.toml"
    manifest.write_text(f"[defaults]\nmax_steps = 1\n[tasks.mood]\ndata = '{place.data}'\n")
    out = place.call("train", "--manifest", manifest, "--base", place.base).stdout
    assert "Fewer than 50 validation rows, so scores may be far off: mood\n" in out
    head = next(line for line in out.splitlines() if "parameters" in line and "task" in line)
    assert head.split()[-3:] == ["validation", "majority", "f1_macro"]
