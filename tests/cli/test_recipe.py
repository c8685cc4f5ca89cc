"""`inlay recipe`: the list, a table, one's own numbers beside it, going on, mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from recipes import cooking
from typer.testing import CliRunner

from inlay import recipes
from inlay.cli.main import app


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("recipe") / "base")


def call(*arguments: Any, width: int = 200) -> Any:
    return CliRunner().invoke(app, ["recipe", *map(str, arguments)], env={"COLUMNS": str(width)})


def fails(*arguments: Any, code: int = 1) -> str:
    done = call(*arguments)
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    assert code == 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1)
    return " ".join(done.stderr.split())


def test_list():
    done = call("list")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in recipes.names())
    assert next(line for line in lines if line.startswith("houlsby-glue")).endswith("990")
    papers = [recipes.find(name).paper for name in recipes.names()]
    assert [line for line in lines if line in papers] == list(dict.fromkeys(sorted(papers)))
    found = json.loads(call("list", "--json").stdout)
    assert sorted(one["name"] for one in found) == recipes.names()
    assert {"paper", "table", "datasets", "rows", "runs"} <= found[0].keys()


@pytest.mark.full
def test_list_and_show_need_no_torch():
    code = "import sys; from inlay.cli.main import app\ntry:\n    app({!r})\nexcept SystemExit:\n    pass\n"
    for arguments in (["recipe", "list"], ["recipe", "show", "he-tae"], ["recipe", "run", "--help"]):
        run = code.format(arguments) + "print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False", arguments
        assert len(done.stdout.splitlines()) > 5


@pytest.mark.parametrize("name", recipes.names())
def test_show(name: str):
    done = call("show", name, width=1200)
    assert done.exit_code == 0
    recipe = recipes.find(name)
    scored = [column.name for column in recipe.columns if any(column.name in row.scores for row in recipe.rows)]
    for row in recipe.rows:
        scores = [f"{row.scores[column]:.{recipe.digits}f}" if column in row.scores else "-" for column in scored]
        lines = [re.sub(r" ± \S+", "", line) for line in done.stdout.splitlines() if line.startswith(f"{row.label} ")]
        assert not scored or any(" ".join(scores) in " ".join(line.split()) for line in lines), row.name
        assert f" {row.label}: {', '.join(row.methods)}" in done.stdout
        spreads = [f"{row.scores[key]:.{recipe.digits}f} ± {spread}" for key, spread in row.spreads.items()]
        assert all(text in done.stdout for text in spreads)
    assert all(" or ".join(one.places) in done.stdout for one in recipe.datasets)
    assert json.loads(call("show", name, "--json").stdout) == json.loads(json.dumps(recipe.document()))


def test_run(base: str, tmp_path: Path):
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = (mine, data, "--base", base, "--library", tmp_path / "library", "--max-steps", 2, "--seeds", 1)
    done = call("run", *how, "--csv", tmp_path / "r.csv")
    assert done.exit_code == 0, done.output
    assert "left out: Third: no folder or file named Third" in done.stdout
    assert "First: classification, 24 to train, 24 to validate; accuracy, reported on validation rows" in done.stdout
    assert "mine: 10 runs: 3 rows, 2 datasets, 1 seed" in done.stdout
    assert "10/10 " in done.stdout
    lines = done.stdout.splitlines()
    at = next(i for i, text in enumerate(lines) if text.startswith("paper | ours"))
    assert lines[at - 1].split() == ["First", "Second"]
    assert lines[at].split()[3:] == ["trained", "accuracy", "f1_macro", "average"]
    assert lines[at + 2].startswith("Fine-tuned")
    assert "90.0 | " in lines[at + 2]
    assert "85.0 | " in lines[at + 2]
    assert re.search(r"^Adapters \(4-8\): (First )?houlsby:size=[48] lr=(0.01|1e-3)", done.stdout, re.M)
    assert "- seeds: 1 instead of 2" in lines
    assert lines.index("about this recipe:") > lines.index("- seeds: 1 instead of 2")
    assert "- The paper does not say how warm the oven was." in lines
    assert 'guessed: text = "text", label = "label", task = classification' in map(str.strip, lines)  # no options
    assert (tmp_path / "library" / "recipes" / "mine.sqlite").exists()
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 7
    again = call("run", *how, "--json")
    found = json.loads(again.stdout)
    assert found["about"] == ["The paper does not say how warm the oven was."]
    assert "10 of them are already done and are not repeated" in again.stderr
    assert [row["row"] for row in found["rows"]] == ["tuned", "any", "eight"]
    shown = f"{found['rows'][0]['columns']['First']['ours']:.1f}"
    assert f"90.0 | {shown} " in lines[at + 2]
    assert found["rows"][0]["averages"]["average"]["paper"] == 85.0


def test_only_rows_and_a_store(base: str, tmp_path: Path):
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = ("--only", "First", "--lines", "eight", "--grid", "lr=1e-3", "--grid", "epochs=1", "--train-size", "8")
    how = (*how, "--against", "eight")
    done = call("run", mine, data, *how, "--base", base, "--store", tmp_path / "s.sqlite", "--json")
    assert done.exit_code == 0, done.output
    assert "minus" not in done.stderr  # there is no other row
    found = json.loads(done.stdout)
    assert (found["columns"], [row["row"] for row in found["rows"]]) == (["First"], ["eight"])
    assert found["store"] == str(tmp_path / "s.sqlite")
    assert "train_size: 8 instead of all rows" in found["differences"]
    assert "average" not in done.stderr.partition("paper | ours")[2]


def test_runs_that_all_fail(base: str, tmp_path: Path):
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = ("--only", "First", "--lines", "tuned", "--grid", "lr=1e30", "--base", base, "--store", tmp_path / "s.sqlite")
    done = call("run", mine, data, *how)
    assert done.exit_code == 1
    assert "90.0 | -" in done.stdout
    assert " failed: " in done.stdout


def test_nothing_is_written_if_something_is_wrong(base: str, tmp_path: Path):
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = ("--base", base, "--library", tmp_path / "library", "--grid", "epochs=0")
    done = call("run", mine, data, *how)
    assert (done.exit_code, "epochs=" in done.stderr) == (1, True)
    assert not (tmp_path / "library").exists()


def test_mistakes(tmp_path: Path):
    assert "Did you mean houlsby-glue" in fails("show", "houlsby-glu")
    assert "Did you mean houlsby-glue" in fails("run", "houlsby-glu", tmp_path)
    assert "holds no dataset of houlsby-glue; CoLA: no folder" in fails("run", "houlsby-glue", tmp_path)
    assert "Did you mean CoLA" in fails("run", "houlsby-glue", tmp_path, "--only", "COLA,CoLa")
    assert "'lr' is not key=a,b,c" in fails("run", "houlsby-glue", tmp_path, "--grid", "lr")
    twice = ("--grid", "max_steps=3", "--max-steps", "3")
    assert "max_steps is given twice" in fails("run", "houlsby-glue", tmp_path, *twice)


@pytest.mark.parametrize(
    "arguments", [["show"], ["run", "houlsby-glue"], ["nonsense"], ["run", "houlsby-glue", ".", "--seeds", "0"]]
)
def test_wrong_usage(arguments: list[str]):
    fails(*arguments, code=2)


def test_an_empty_list_is_wrong_usage(tmp_path: Path):
    fails("run", "houlsby-glue", tmp_path, "--only", ",", code=2)


def test_tuned_rows_and_a_clock(base: str, tmp_path: Path):
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = (mine, data, "--only", "First", "--lines", "eight", "--seeds", 1, "--max-steps", 2, "--base", base)
    how = (*how, "--store", tmp_path / "s.sqlite", "--tune", "lr=1e-3,3e-3")
    shown = call("run", *how, "--minutes", 0)
    assert shown.exit_code == 0, shown.output
    assert "- unfinished: 3 of 3 runs; run it again to continue" in shown.stdout.splitlines()
    done = call("run", *how, "--minutes", 60)
    assert "mine: 3 runs: 2 rows, 1 dataset, 1 seed" in done.stdout  # 1e-3 is the paper's too
    assert "unfinished" not in done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("Adapters (8), lr tuned  ")]
    assert next(line for line in lines if line.startswith("Adapters (8), lr tuned: First lr=")).endswith("e-3")
    assert "- lr, in the rows tuned: the best of 2 by validation, 1e-3, 3e-3; the paper has its own" in lines


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ("lr=fast", "--tune 'lr=fast' is not lr, or lr=1e-4,1e-3"),
        ("epochs", "epochs cannot be tuned, only lr"),
        ("lr=1e-3", "expected two positive numbers or more"),
    ],
)
def test_what_cannot_be_tuned(tmp_path: Path, tune: str, said: str):
    assert said in fails("run", "houlsby-glue", tmp_path, "--tune", tune)


def test_a_folder_above_or_below(tmp_path: Path):
    cooking.serve(tmp_path, {"glue/CoLA/train.jsonl": 0, "glue/CoLA/dev.jsonl": 1})
    for wrong in (tmp_path, tmp_path / "glue" / "CoLA"):
        assert f"Did you mean {tmp_path.resolve() / 'glue'}?" in fails("run", "houlsby-glue", wrong)


def test_what_the_paper_says_and_what_is_run_are_compared(base: str, tmp_path: Path):
    data = cooking.serve(tmp_path / "data", {"CoLA/train.jsonl": 0, "CoLA/dev.jsonl": 1})
    how = ("--only", "CoLA", "--seeds", 1, "--minutes", 0, "--base", base, "--store", tmp_path / "s.sqlite", "--json")

    def said(recipe: str, *more: Any) -> list[str]:
        done = call("run", recipe, data, *how, *more)
        assert done.exit_code == 0, done.output
        found: list[str] = json.loads(done.stdout)["differences"]
        return found

    houlsby = said("houlsby-glue", "--lines", "adapters-64")
    assert not any(text.startswith("selection") for text in houlsby)  # accuracy picks, and Matthews is reported
    assert not any(text.startswith("attention") for text in houlsby)
    fast = said("houlsby-glue", "--lines", "adapters-64", "--grid", "attention_dropout=false")
    assert [text for text in fast if text.startswith("attention")] == ["attention_dropout: false instead of true"]
    assert "weight decay: none instead of that of Devlin et al. 2018" in houlsby
    assert not any(text.startswith(("warmup", "pool", "schedule")) for text in houlsby)  # as in the paper
    assert "pool: mean instead of cls" in said("houlsby-glue", "--lines", "adapters-64", "--grid", "pool=mean")
    assert "warmup: 0.2 instead of 0.1" in said("houlsby-glue", "--lines", "adapters-64", "--grid", "warmup=0.2")
    fu = said("adapterbias-sharing", "--lines", "share-v", "--grid", "max_length=16")
    as_there = ("pool", "warmup", "schedule", "attention", "head", "selection")
    assert not any(text.startswith(as_there) for text in fu)
    other = said("adapterbias-sharing", "--lines", "share-v", *("--grid", "max_length=16", "--grid", "schedule=linear"))
    assert "schedule: linear instead of constant" in other
    he = said("he-overfitting", "--lines", "adapter")
    assert "warmup: 0.1; the paper does not say" in he
    sharing = said("sharing-glue", "--lines", "not-shared")
    assert "attention dropout: none; the paper does not say" in sharing
