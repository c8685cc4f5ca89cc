"""How far rows are from one of them, against a plain computation from the finished runs."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import tiny
from recipes import cooking
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.errors import RunError
from inlay.recipes.api import run
from inlay.recipes.plan import Changes


@pytest.mark.parametrize("report", ["best", "mean"])
def test_differences_are_paired_by_seed(tmp_path: Path, report: str):
    folder = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(rows=("tuned", "eight"), seeds=3)
    found = run(work.host(), cooking.write(tmp_path, report=report), folder, changes, against="tuned")
    assert found.against is not None
    assert list(found.against.differences) == ["eight"]

    scores: dict[str, dict[str, dict[int, float]]] = {"tuned": {}, "eight": {}}
    for name, split, metric in (("First", "validation", "accuracy"), ("Second", "test", "f1_macro")):
        for row, method in (("tuned", "finetune:top=1"), ("eight", "houlsby:size=8")):
            runs = [one for one in found.comparison.rows if one.label.split(".")[0] == name]
            runs = [one for one in runs if one.setting["method"] == method]
            rates = {one.config["lr"] for one in runs}
            mean = {lr: statistics.mean(one.value or 0 for one in runs if one.config["lr"] == lr) for lr in rates}
            best = {lr for lr in rates if mean[lr] == max(mean.values())}
            if len(best) > 1:
                pytest.skip("two settings are equally good")
            own = [one for one in runs if one.config["lr"] in best]
            scores[row][name] = {one.seed: 100 * one.metrics[split][metric] for one in own}
    for row in scores:
        scores[row]["average"] = {seed: statistics.mean(one[seed] for one in scores[row].values()) for seed in range(3)}
    for name, found_one in found.against.differences["eight"].items():
        apart = [scores["eight"][name][seed] - scores["tuned"][name][seed] for seed in range(3)]
        half = 4.302653 * statistics.stdev(apart) / math.sqrt(3)  # Student's t with 2 degrees of freedom
        expected = (statistics.mean(apart), statistics.mean(apart) - half, statistics.mean(apart) + half)
        assert (found_one.mean, found_one.low, found_one.high) == pytest.approx(expected, abs=1e-4)
        assert found_one.seeds == 3
    document = found.document()["against"]
    assert document["row"] == "tuned"
    assert set(document["differences"]["eight"]) == {"First", "Second", "average"}


def test_one_seed_has_no_interval(tmp_path: Path):
    folder = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=("First",), rows=("tuned", "eight"), seeds=1)
    found = run(work.host(), cooking.write(tmp_path), folder, changes, against="eight")
    assert found.against is not None
    (only,) = found.against.differences["tuned"].values()
    assert only.low is None
    assert only.high is None
    assert only.seeds == 1


def test_a_row_that_is_not_run_is_refused_before_training(tmp_path: Path):
    folder = cooking.serve(tmp_path / "data", cooking.FILES)
    with pytest.raises(RunError, match=r"row 'eigth' is not run\. Did you mean eight"):
        run(work.host(), cooking.write(tmp_path), folder, Changes(rows=("tuned", "eight")), against="eigth")


def test_a_row_that_the_base_is_too_small_for_is_refused_before_training(tmp_path: Path):
    mine = Path(cooking.write(tmp_path))
    mine.write_text(mine.read_text().replace("finetune:top=1", "finetune:top=9"))
    data, base, store = cooking.serve(tmp_path, cooking.FILES), tiny.save_text_model(tmp_path / "base"), tmp_path / "s"
    how = [str(mine), data, "--base", base, "--against", "tuned", "--store", str(store)]
    ran = CliRunner().invoke(app, ["recipe", "run", *how])
    assert "row 'tuned' is not run. Valid: any, eight" in ran.output
    assert not store.exists()


def test_a_share_that_is_kept_is_not_compared_with_scores(tmp_path: Path):
    mine = Path(cooking.write(tmp_path))
    kept = '[rows.kept]\nlabel = "Kept"\nmethods = ["adapterbias:l0=1e-4"]\nshows = "kept"\n\n[scores]\nkept = []'
    mine.write_text(mine.read_text().replace("[scores]", kept))
    changes = Changes(only=("First",), rows=("eight", "tuned", "kept"), seeds=2, max_steps=1, grid={"lr": "1e-4"})
    folder = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(work.host(), str(mine), folder, changes, against="eight")
    assert found.against is not None
    assert list(found.against.differences) == ["tuned"]
    assert found.notes == ()
