"""Rows of other kinds than a method and its scores: tuned, of another base, baselines, evaluations, what L0 keeps."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from recipes import cooking
from training import work

import inlay
from inlay.errors import RunError
from inlay.recipes import find
from inlay.recipes.api import run
from inlay.recipes.plan import Changes, around, choose
from inlay.recipes.table_beside_paper import Line, TableBesidePaper


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


def line(found: TableBesidePaper, name: str) -> Line:
    return next(one for one in found.lines if one.row.name == name)


def changed(folder: Path, *changes: tuple[str, str], **how: Any) -> str:
    """The recipe with some of its text replaced."""
    path = Path(cooking.write(folder, **how))
    for before, after in changes:
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))
    return str(path)


# --- tune -----------------------------------------------------------------------------------------------------------


def test_values_are_around_the_middle_of_the_papers():
    assert around([1e-4]) == (3.3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    assert around([3e-5, 3e-4, 3e-3]) == around([3e-4])
    assert len(around([5e-5, 4e-5, 3e-5, 2e-5])) == 5


def test_a_tuned_row_tries_as_many_values_for_every_method_and_is_beside_the_papers(host: inlay.Host, tmp_path: Path):
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["Second"], rows=["tuned", "eight"], seeds=1, max_steps=2, tune={"lr": ()})
    found = run(host, cooking.write(tmp_path), data, changes)
    assert [one.row.name for one in found.lines] == ["tuned", "tuned-tuned", "eight", "eight-tuned"]
    assert [one.row.label for one in found.lines][1] == "Fine-tuned, lr tuned"
    rates = {
        method: {row.config["lr"] for row in found.comparison.rows if row.setting["method"] == method}
        for method in ("finetune:top=1", "houlsby:size=8")
    }
    assert rates["finetune:top=1"] == set(around([1e-4]))  # the paper's own is among them, and is run once
    assert rates["houlsby:size=8"] == {1e-3, 1e-2, *around([1e-3, 1e-2])}
    assert len(found.comparison.rows) == 5 + 7
    for name, values in (("tuned", around([1e-4])), ("eight", around([1e-3, 1e-2]))):
        own = [row for row in found.comparison.rows if row.setting["method"] in line(found, name).row.methods]
        tried = [row for row in own if row.config["lr"] in values]
        best = max(row.value or 0.0 for row in tried)
        cell = line(found, f"{name}-tuned").cells["Second"]
        assert cell.ours in [100 * row.metrics["test"]["f1_macro"] for row in tried if row.value == best]
        assert cell.setting["lr"] in values
        assert cell.paper == line(found, name).cells["Second"].paper
    assert any(
        text.startswith("lr, in the rows tuned: the best of 5 by validation, 3.3e-5") for text in found.differences
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (Changes(tune={"epochs": ()}), "epochs cannot be tuned, only lr"),
        (Changes(tune={"lr": ()}, grid={"lr": "1e-3"}), "lr is both tuned and in the grid"),
        (Changes(tune={"lr": (1e-3,)}), "expected two positive numbers or more"),
        (Changes(tune={"lr": (1e-3, -1.0)}), "expected two positive numbers or more"),
        (Changes(tune={"lr": (1e-3, math.inf)}), "expected two positive numbers or more"),
    ],
)
def test_what_cannot_be_tuned(tmp_path: Path, changes: Changes, said: str):
    with pytest.raises(RunError, match=said):
        choose(find(cooking.write(tmp_path)), str(tmp_path), changes)


@pytest.mark.parametrize("rates", ["", "lr = []", 'lr = ["1e-3"]', "lr = [0.0]"])
def test_without_a_rate_of_the_papers_values_must_be_given(tmp_path: Path, rates: str):
    recipe = find(changed(tmp_path, ("lr = [1e-3, 1e-2]", rates)))
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    with pytest.raises(RunError, match=r"any names no lr to tune around; give values: lr=1e-4,1e-3; eight names no lr"):
        choose(recipe, data, Changes(tune={"lr": ()}))
    chosen = choose(recipe, data, Changes(tune={"lr": (1e-4, 1e-3)}))
    assert {chosen.tried(row, recipe.datasets[0])["lr"] for row in chosen.rows if row.name.endswith("-tuned")} == {
        (1e-4, 1e-3)
    }


# --- bases, and what a base cannot have -----------------------------------------------------------------------------


def test_rows_of_the_base_at_hand_are_run(tmp_path: Path):
    recipe = find("adapterbias-bases")
    data = cooking.serve(tmp_path, {"CoLA/train.jsonl": 0})

    def names(base: str | None, *rows: str) -> set[str]:
        return {row.name.partition("-")[0] for row in choose(recipe, data, Changes(rows=rows), base).rows}

    assert recipe.bases == ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
    assert names("FacebookAI/roberta-base") == names("/models/roberta-base/") == {"rob"}
    assert names("all-MiniLM-L6-v2") == names(None) == {"bb"}  # none of the paper's
    assert names("roberta-base", "rol-bitfit", "bl-bitfit") == {"rol", "bl"}


def test_other_rows_than_those_of_the_base_are_said(host: inlay.Host, tmp_path: Path):
    mine = changed(tmp_path, ('trained = "1.2K"', 'base = "bert-huge"'))
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(host, mine, data, Changes(only=["First"], seeds=1, max_steps=1), minutes=0)
    assert [one.row.name for one in found.lines] == ["tuned", "any"]
    assert "rows left out: those of bert-huge; run them with that --base, or name them (--lines)" in found.differences
    found = run(host, mine, data, Changes(only=["First"], rows=["eight"], seeds=1, max_steps=1), minutes=0)
    assert found.differences[0].endswith("instead of bert-huge")


def test_more_layers_than_the_base_has_are_left_out_and_said(host: inlay.Host, tmp_path: Path):
    mine = changed(tmp_path, ('["houlsby:size=4", "houlsby:size=8"]', '["finetune:top=1", "finetune:top=99"]'))
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(host, mine, data, Changes(only=["First"], rows=["any"], seeds=1, max_steps=1, grid={"lr": "1e-3"}))
    assert line(found, "any").cells["First"].method == "finetune:top=1"
    assert any(text.startswith("left out: finetune:top=99: layers=top99 is out of range") for text in found.differences)
    assert not any("as requested" in text and "Adapters (4-8)" in text for text in found.differences)
    mine = changed(tmp_path, ('["houlsby:size=8"]', '["finetune:top=99"]'))
    with pytest.raises(RunError, match="mine: finetune:top=99: layers=top99 is out of range"):
        run(host, mine, data, Changes(rows=["eight"]))


# --- what is not a score of a trained method ------------------------------------------------------------------------


@pytest.mark.full
def test_baselines_are_rows_with_the_standard_error_of_the_mean(host: inlay.Host, tmp_path: Path):
    pytest.importorskip("sklearn")
    pytest.importorskip("optuna")
    majority = '[rows.majority]\nlabel = "Majority"\nmethods = ["majority"]\n[rows.linear]\nlabel = "No BERT"\n'
    mine = changed(
        tmp_path,
        ("[rows.tuned]", f'{majority}methods = ["tf-idf"]\n[rows.tuned]'),
        ("tuned = [90.0", 'majority = []\nlinear = [50.0, "-", 60.0]\ntuned = [90.0'),
        ("seeds = 2", 'seeds = 2\nspread = "sem"'),
        report="mean",
    )
    data = cooking.serve(tmp_path / "data", {"first.jsonl": 1})
    changes = Changes(only=["First"], rows=["majority", "linear", "tuned"], max_steps=2)
    found = run(host, mine, data, changes, store=tmp_path / "r.sqlite")
    cell = line(found, "majority").cells["First"]
    assert (cell.paper, cell.method, cell.parameters) == (None, "majority", None)
    assert cell.ours is not None
    assert line(found, "linear").cells["First"].paper == 50.0
    assert line(found, "linear").cells["First"].ours is not None
    values = [100 * row.metrics["validation"]["accuracy"] for row in found.comparison.rows]
    assert line(found, "tuned").cells["First"].spread == pytest.approx(statistics.stdev(values) / math.sqrt(2))
    again = run(host, mine, data, changes, store=tmp_path / "r.sqlite")
    assert again.document() == found.document()
    with pytest.raises(RunError, match="majority, linear trains nothing; name another row beside it"):
        run(host, mine, data, Changes(rows=["majority", "linear"]))


def test_the_mean_and_the_best_of_all_evaluations(host: inlay.Host, tmp_path: Path):
    more = (
        'methods = ["houlsby:size=8"]',
        'methods = ["finetune:top=1"]\nsettings = { lr = 1e-4 }\nshows = "best of evaluations"',
    )
    mine = changed(tmp_path, more, ('trained = "100%"', 'shows = "mean of evaluations"'), more="eval_every = 1")
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(host, mine, data, Changes(only=["First"], rows=["tuned", "eight"], seeds=1))
    (row,) = found.comparison.rows
    seen = [100 * entry["metrics"]["accuracy"] for entry in row.history]
    assert len(seen) == 6
    assert line(found, "tuned").cells["First"].ours == pytest.approx(statistics.fmean(seen))
    assert line(found, "eight").cells["First"].ours == pytest.approx(max(seen))


def test_what_l0_keeps(host: inlay.Host, tmp_path: Path):
    mine = changed(tmp_path, ('["houlsby:size=8"]', '["adapterbias:l0=1e-4"]\nshows = "kept"'))
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["First"], rows=["eight"], seeds=2, max_steps=1, grid={"lr": "1e-6"})
    found = run(host, mine, data, changes)
    assert line(found, "eight").cells["First"].ours == pytest.approx(83.18, abs=0.01)  # where such gates begin


def test_parameters_for_all_tasks(host: inlay.Host, tmp_path: Path):
    mine = changed(tmp_path, ("finetune:top=1", "finetune"))
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["First"], rows=["tuned", "eight"], seeds=1, max_steps=1, grid={"lr": "1e-4"})
    found = run(host, mine, data, changes)
    assert line(found, "tuned").total == 3  # a model for each of the table's three datasets
    share = line(found, "eight").share
    assert share is not None
    assert line(found, "eight").total == pytest.approx(1 + 3 * share)
