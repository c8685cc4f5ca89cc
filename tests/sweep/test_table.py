"""Ranking by validation, never by test; and the files that show it."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inlay.errors import RunError
from inlay.sweeps.exports import cells, header
from inlay.sweeps.store import Row
from inlay.sweeps.table import Select, Sweep, rank, worth_keeping


def row(lr: float, seed: int, value: float | None, **more: Any) -> Row:
    made: dict[str, Any] = {
        "id": f"{lr}-{seed}-{more.get('setting', '')}",
        "position": 0,
        "label": f"lr={lr} seed={seed}",
        "setting": {"method": "houlsby", "lr": lr},
        "seed": seed,
        "config": {"lr": lr},
        "state": "done",
        "metric": "accuracy",
        "value": value,
        "metrics": {"validation": {"accuracy": value}, "test": {"accuracy": 1 - (value or 0)}},
        "parameters": {"adapter": 100},
        "seconds": 1.5,
    }
    return Row(**{**made, **more})


ROWS = [row(0.1, 0, 0.9), row(0.1, 1, 0.5), row(0.2, 0, 0.8), row(0.2, 1, 0.75), row(0.3, 0, 0.1), row(0.3, 1, 0.2)]


def swept(rows: list[Row] = ROWS, select: Select = "mean", keys: tuple[str, ...] = ("lr",), seeds: int = 2) -> Sweep:
    return Sweep("mine", "accuracy", select, keys, tuple(rows), rank(rows, "accuracy", select, seeds))


def test_a_metric_to_report_is_shown_and_decides_nothing():
    rows = [
        row(
            r.setting["lr"],
            r.seed,
            r.value,
            metrics={s: {**m, "matthews": r.setting["lr"]} for s, m in r.metrics.items()},
        )
        for r in ROWS
    ]
    plain, found = swept(rows), replace(swept(rows), report="matthews")
    assert [e.setting["lr"] for e in found.ranking] == [e.setting["lr"] for e in plain.ranking] == [0.2, 0.1, 0.3]
    shown = dict(zip(header(found), cells(found, found.ranking[0]), strict=True))
    assert shown["validation matthews"] == shown["test matthews"] == "0.2000 ± 0.0000"
    assert header(found) == [*header(plain)[:4], "validation matthews", "test matthews", *header(plain)[4:]]
    assert found.document()["ranking"][0]["reported"] == {"metric": "matthews", "validation": 0.2, "test": 0.2}
    assert "reported" not in plain.document()["ranking"][0]


def test_mean_and_best_differ():
    assert [e.setting["lr"] for e in rank(ROWS, "accuracy", "mean", 2)] == [0.2, 0.1, 0.3]
    assert [e.setting["lr"] for e in rank(ROWS, "accuracy", "best", 2)] == [0.1, 0.2, 0.3]
    first = rank(ROWS, "accuracy", "mean", 2)[0]
    assert first.mean == pytest.approx(0.775)
    assert first.std == pytest.approx(0.0353553, abs=1e-6)  # of a sample of two
    assert first.best.seed == 0
    assert worth_keeping(ROWS, "accuracy", 2) == {r.id for r in ROWS[:4]}


def test_test_rows_decide_nothing():
    """Test values are the reverse of validation here: a ranking by them would be upside down."""
    entry = rank(ROWS, "accuracy", "mean", 2)[0]
    assert entry.test == pytest.approx(0.225)
    better = [
        row(r.setting["lr"], r.seed, r.value, metrics={**r.metrics, "test": {"accuracy": float(r.setting["lr"])}})
        for r in ROWS
    ]
    assert [e.setting for e in rank(better, "accuracy", "mean", 2)] == [
        e.setting for e in rank(ROWS, "accuracy", "mean", 2)
    ]


def test_a_metric_that_should_be_low():
    ranked = rank(ROWS, "perplexity", "best", 2)
    assert [e.setting["lr"] for e in ranked] == [0.3, 0.1, 0.2]
    assert ranked[0].best.value == 0.1


def test_settings_that_lack_a_seed_come_last():
    rows = [row(0.1, 0, 0.99), row(0.1, 1, None, state="failed", error="no"), *ROWS[2:]]
    ranked = rank(rows, "accuracy", "mean", 2)
    assert [e.setting["lr"] for e in ranked] == [0.2, 0.3, 0.1]
    assert "(1 of 2 seeds)" in " ".join(cells(swept(rows), ranked[-1]))
    assert rank(rows, "accuracy", "best", 2)[0].setting["lr"] == 0.1


def test_ties_go_to_fewer_parameters_and_then_to_the_first():
    rows = [
        row(0.1, 0, 0.5, parameters={"adapter": 9}, position=0),
        row(0.2, 0, 0.5, parameters={"adapter": 3}, position=2),
        row(0.3, 0, 0.5, parameters={"adapter": 3}, position=1),
    ]
    assert [e.setting["lr"] for e in rank(rows, "accuracy", "mean", 1)] == [0.3, 0.2, 0.1]


def test_nan_pruned_and_failed_runs_are_not_ranked():
    rows = [row(0.1, 0, float("nan")), row(0.2, 0, 0.9, state="pruned"), row(0.3, 0, 0.1)]
    assert [e.setting["lr"] for e in rank(rows, "accuracy", "mean", 1)] == [0.3]


def test_csv_has_a_line_for_every_run(tmp_path: Path):
    rows = [*ROWS, row(0.4, 0, None, state="failed", error="it, broke\nhere", metrics={})]
    swept(rows).to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 7
    assert [line["rank"] for line in found] == ["1", "1", "2", "2", "3", "3", ""]
    assert found[0]["lr"] == "0.2"
    assert {float(line["value"]) for line in found[:2]} == {0.8, 0.75}
    assert (found[-1]["state"], found[-1]["problem"]) == ("failed", "it, broke\nhere")


def test_csv_has_all_digits(tmp_path: Path):
    lr = 0.00012345678901234567
    swept([row(lr, 0, 0.5)], seeds=1).to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["lr"]) == lr


def test_latex_is_escaped_and_square(tmp_path: Path):
    odd = {"setting": {"method": "a_b&c%{}#$^~\\", "lr": 0.1}}
    swept([row(0.1, 0, 0.5, **odd)], keys=("method", "lr"), seeds=1).to_latex(tmp_path / "s.tex")
    text = (tmp_path / "s.tex").read_text()
    assert r"a\_b\&c\%\{\}\#\$\textasciicircum{}\textasciitilde{}\textbackslash{}" in text
    columns = len(re.search(r"begin{tabular}{(\w+)}", text)[1])  # type: ignore[index]
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 2
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {columns}
    assert r"\textbf{1}" in lines[1]


def test_the_table_says_how_much_varies():
    made = swept()
    assert header(made) == ["rank", "lr", "accuracy", "test accuracy", "seconds", "parameters"]
    assert cells(made, made.best) == ["1", "0.2", "0.7750 ± 0.0354", "0.2250 ± 0.0354", "3.0", "100"]
    assert "0.7750 ± 0.0354" in made._repr_html_()
    assert swept(select="best").document()["best"]["best"] == 0.9


@pytest.mark.thin(3)
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("keys", [("lr",), ("method",), ("method", "lr"), ("method", "lr", "where")])
def test_plots(tmp_path: Path, ending: str, keys: tuple[str, ...]):
    pytest.importorskip("matplotlib")
    rows = [
        row(lr, seed, lr + seed / 10, setting={"method": method, "lr": lr, "where": where})
        for lr in (0.1, 0.2, 0.9)
        for seed in (0, 1)
        for method in ("houlsby", "norms")
        for where in ("both", "ffn")
    ]
    swept(rows, keys=keys).plot(tmp_path / f"s.{ending}")
    assert (tmp_path / f"s.{ending}").stat().st_size > 3000
    if ending == "svg":
        text = (tmp_path / "s.svg").read_text()
        assert "validation accuracy" in text
        assert ("houlsby" in text) == ("method" in keys)


def test_a_method_without_the_first_key_is_in_the_legend(tmp_path: Path):
    pytest.importorskip("matplotlib")
    rows = [row(lr, 0, lr, setting={"method": "houlsby", "size": 4, "lr": lr}) for lr in (0.1, 0.2)]
    rows += [row(lr, 0, lr, setting={"method": "norms", "lr": lr}) for lr in (0.1, 0.2)]
    swept(rows, keys=("method", "size", "lr"), seeds=1).plot(tmp_path / "s.svg")
    text = (tmp_path / "s.svg").read_text()
    assert "houlsby" in text
    assert "norms" in text


def test_files_that_cannot_be_written(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for write in (swept().to_csv, swept().to_latex, swept().plot):
        with pytest.raises(RunError, match="cannot write"):
            write(tmp_path / "nowhere" / "s.png")
    with pytest.raises(RunError, match=r"cannot write .*s\.xyz"):
        swept().plot(tmp_path / "s.xyz")
    with pytest.raises(RunError, match="nothing to plot"):
        swept([row(0.1, 0, None, state="failed")]).plot(tmp_path / "s.png")
