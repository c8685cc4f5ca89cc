"""A comparison: what is run, on what terms, what is chosen and reported, what is never done twice, what is refused."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from training import work

import inlay
from inlay.comparison.baselines import MAJORITY, TFIDF
from inlay.comparison.exports import header, points
from inlay.errors import RunError

METHODS = "houlsby:size=4,houlsby:size=8,bitfit,finetune:top=1,finetune"
GRID = {"lr": [1e-3, 1e-2]}


def run(seed: int = 0, **settings: Any) -> inlay.Run:
    how = {"data": work.texts(30, seed), "name": f"set-{seed}", "batch_size": 4, "max_steps": 2, "val_size": 9}
    return inlay.Run(**{**how, **settings})


class Heard:
    """Runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] in ("begin", "baseline"):
            self.begun.append(event["run"])


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("compare") / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in work.texts(20, 9)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def found(host: inlay.Host, tested: str) -> inlay.Comparison:
    """One dataset with test rows, one without."""
    return inlay.compare(host, [run(0, test=tested), run(1)], METHODS, GRID, seeds=2, tasks=9, trials=2)


def line(found: inlay.Comparison, method: str) -> Any:
    return next(one for one in found.lines if one.method == method)


# --- what is run, and what is made of it --------------------------------------------------------------------------


def test_every_method_with_every_setting_seed_and_dataset(found: inlay.Comparison):
    assert len(found.rows) == 5 * 2 * 2 * 2
    assert {row.state for row in found.rows} == {"done"}
    assert len({row.label for row in found.rows}) == len(found.rows)
    assert {one.method for one in found.lines} == {*METHODS.split(","), MAJORITY, TFIDF}
    assert (found.settings, found.seeds, found.tasks) == (2, (0, 1), 9)
    assert all(set(one.cells) == {"set-0", "set-1"} for one in found.lines)
    assert all(set(cell.values) == {0, 1} for one in found.lines for cell in one.cells.values())


def test_validation_chooses_and_test_rows_are_reported(found: inlay.Comparison):
    assert [one.split for one in found.datasets] == ["test", "validation"]
    for method in METHODS.split(","):
        for dataset in found.datasets:
            rows = [r for r in found.rows if r.label.startswith(f"{dataset.name} {method} ")]
            means = {lr: statistics.fmean(r.value or 0.0 for r in rows if r.setting["lr"] == lr) for lr in GRID["lr"]}
            cell = line(found, method).cells[dataset.name]
            assert cell.validation == pytest.approx(max(means.values()))
            assert means[cell.setting["lr"]] == max(means.values())
            chosen = {
                r.seed: r.metrics[dataset.split]["accuracy"]
                for r in rows
                if r.setting == {"method": method, **cell.setting}
            }
            assert cell.values == chosen


def test_runs_are_those_of_a_sweep(host: inlay.Host, found: inlay.Comparison):
    alone = inlay.sweep(host, run(1), {"method": ["bitfit"], **GRID}, seeds=2, select="mean")
    mine = {row.id: row for row in found.rows}
    for row in alone.rows:
        assert mine[row.id].value == pytest.approx(row.value)
    assert line(found, "bitfit").cells["set-1"].validation == pytest.approx(alone.best.mean)


def test_costs(host: inlay.Host, found: inlay.Comparison):
    size = host.base.sites.size
    for method in METHODS.split(","):
        one, count = line(found, method), inlay.parse_method(method).count(host.base.sites)
        assert one.parameters == count
        assert one.share == pytest.approx(count / size)
        assert one.total == pytest.approx(9 if method == "finetune" else 1 + 9 * count / size)
        adapter = found.adapter(method, "set-0")
        assert adapter is not None
        assert one.cells["set-0"].bytes == len(adapter.content())
        assert one.bytes > 4 * count
        assert one.seconds > 0
    assert line(found, TFIDF).total is None
    assert found.adapter(TFIDF, "set-0") is None


def test_families_are_lines_of_the_picture(found: inlay.Comparison):
    made, reference = points(found)
    assert reference == "full fine-tuning"
    assert {point.family for point in made} == {"houlsby", "bitfit", "finetune", TFIDF}
    full = line(found, "finetune").cells
    assert all(point.baseline == full[point.dataset].mean for point in made)
    assert all(point.value == point.baseline for point in made if point.method == "finetune")


def test_without_fine_tuning_the_best_is_the_reference(host: inlay.Host):
    found = inlay.compare(host, run(), "bitfit,norms", seeds=1, baselines=False)
    made, reference = points(found)
    assert reference == found.lines[0].method
    assert {point.value - point.baseline for point in made if point.method == reference} == {0.0}
    assert header(found)[-2:] == ["set-0\naccuracy\nvalidation", "against the best"]
    assert [one.is_baseline for one in found.lines] == [False, False]
    assert "too few" in found.says[-1]


def test_files(found: inlay.Comparison, tmp_path: Path):
    found.to_csv(tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * 2 * 2
    best = found.best
    assert best is not None
    of_best = [float(r["value"]) for r in rows if r["method"] == best.method and r["dataset"] == "set-0"]
    assert of_best == list(best.cells["set-0"].values.values())
    assert {r["lr"] for r in rows if r["baseline"] == "0"} <= {"0.001", "0.01"}
    found.to_latex(tmp_path / "c.tex")
    text = (tmp_path / "c.tex").read_text()
    assert text.count(r"\\") == 8
    assert text.count(r"\textbf{") == len(header(found))
    assert "9.00x" in text
    assert json.loads(json.dumps(found.document()))["best"] == best.method
    assert "<th>9 tasks</th>" in found._repr_html_()
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "c.svg")
    assert "relative to full fine-tuning" in (tmp_path / "c.svg").read_text()


def test_tagging_has_no_linear_baseline_and_says_so(host: inlay.Host):
    tags = inlay.Run(data=work.entities(24), name="tags", batch_size=4, max_steps=1, val_size=8)
    found = inlay.compare(host, [tags, run()], "bitfit", seeds=1, trials=1)
    assert any("tags: tagging has no TF-IDF baseline" in note for note in found.notes)
    assert found.lines[-1].method == TFIDF
    assert set(found.lines[-1].cells) == {"set-0"}
    assert set(line(found, MAJORITY).cells) == {"tags", "set-0"}


# --- never twice --------------------------------------------------------------------------------------------------


def test_only_what_is_new_is_run(host: inlay.Host, tmp_path: Path):
    store, how = tmp_path / "c.sqlite", {"seeds": 1, "trials": 1}
    first, again, more = Heard(), Heard(), Heard()
    one = inlay.compare(host, run(), "bitfit,norms", store=store, callbacks=[first], **how)
    assert len(first.begun) == 4
    two = inlay.compare(host, run(), "bitfit,norms", store=store, callbacks=[again], **how)
    assert again.begun == []
    assert two.document() == one.document()
    three = inlay.compare(host, [run(), run(1)], "bitfit,norms,frozen", store=store, callbacks=[more], **how)
    assert sorted(more.begun) == sorted(
        [
            "set-0 frozen",
            "set-1 bitfit",
            "set-1 norms",
            "set-1 frozen",
            f"set-1 {MAJORITY} seed=0",
            f"set-1 {TFIDF} seed=0",
        ]
    )
    assert line(three, "bitfit").cells["set-0"] == line(one, "bitfit").cells["set-0"]
    assert three.adapter("frozen", "set-1") is not None


def test_stopped_and_called_again_it_ends_as_if_it_had_not_been(host: inlay.Host, tmp_path: Path):
    runs, how = [run(max_steps=4), run(1, max_steps=4)], {"seeds": 2, "baselines": False, "slots": 2, "save_every": 0.0}
    steps: list[str] = []

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            steps.append(event["run"])
            if len(steps) == 11:
                raise KeyboardInterrupt

    whole = inlay.compare(host, runs, "bitfit,finetune:top=1", store=tmp_path / "a.sqlite", **how)
    with pytest.raises(KeyboardInterrupt):
        inlay.compare(host, runs, "bitfit,finetune:top=1", store=tmp_path / "b.sqlite", callbacks=[stop], **how)
    rest = Heard()
    again = inlay.compare(host, runs, "bitfit,finetune:top=1", store=tmp_path / "b.sqlite", callbacks=[rest], **how)
    assert 0 < len(rest.begun) < 8  # some had ended, some had not
    assert [(row.id, row.state, row.value) for row in again.rows] == [(r.id, r.state, r.value) for r in whole.rows]
    assert [one.average for one in again.lines] == [one.average for one in whole.lines]


def test_sizes_are_known_when_adapters_are_not_kept(host: inlay.Host, tmp_path: Path):
    store = tmp_path / "c.sqlite"
    one = inlay.compare(host, run(), "bitfit,norms", store=store, seeds=1, baselines=False)
    inlay.compare(host, run(), "frozen", store=store, seeds=1, baselines=False)
    again = inlay.compare(host, run(), "bitfit,norms", store=store, seeds=1, baselines=False)
    assert again.adapter("bitfit", "set-0") is None
    assert line(again, "bitfit").bytes == line(one, "bitfit").bytes is not None


def test_a_method_that_diverges_is_a_note_and_the_others_are_compared(host: inlay.Host):
    wild = {"lr": [1e30]}
    found = inlay.compare(host, run(max_steps=6), "frozen,houlsby", wild, seeds=1, trials=1)
    assert any("failed:" in note for note in found.notes)
    assert found.best is not None


# --- what is refused ----------------------------------------------------------------------------------------------


def test_everything_wrong_is_said_together(host: inlay.Host, tmp_path: Path):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n" + "".join(f"text {i},{'xy'[i % 2]}\n" for i in range(9)))
    runs = [run(), inlay.Run(data=str(tmp_path / "no.csv")), inlay.Run(data=str(rows), text="a", label="labell")]
    grid = {"lr": [], "epochz": [1], "method": ["norms"]}
    with pytest.raises(RunError) as caught:
        inlay.compare(host, runs, "houlsbi,finetune:top=9,bitfit,bitfit", grid, seeds=0, tasks=0, trials=0)
    for part in (
        "houlsbi",
        "top9",
        "bitfit twice",
        "lr has no values",
        "epochz",
        "method is not a key of this grid",
        "seeds=0",
        "tasks=0",
        "trials=0",
        "no.csv",
        "labell",
    ):
        assert part in str(caught.value), part
    assert str(caught.value).count("houlsbi'") == 1


@pytest.mark.parametrize(
    ("runs", "methods", "grid", "said"),
    [
        ([run()], "houlsby,bitfit", {"size": [4, 8]}, "houlsby 2, bitfit 1"),
        ([run(), run(0, name="copy")], "bitfit", None, "set-0 and copy hold the same rows"),
        ([], "bitfit", None, "give a dataset"),
        ([run()], "", None, "method has no values"),
        (
            [run(metric="f1"), inlay.Run(data=work.ratings(24), name="stars", metric="rmse")],
            "bitfit",
            None,
            "no common average (set-0: f1, stars: rmse)",
        ),
    ],
)
def test_unequal_terms(host: inlay.Host, runs: Any, methods: str, grid: Any, said: str):
    with pytest.raises(RunError, match=re.escape(said)):
        inlay.compare(host, runs, methods, grid, seeds=1, trials=1)


def test_two_datasets_of_one_name_are_numbered(host: inlay.Host):
    found = inlay.compare(host, [run(name="x"), run(1, name="x")], "bitfit", seeds=1, baselines=False)
    assert [one.name for one in found.datasets] == ["x", "x-2"]
