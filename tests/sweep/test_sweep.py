"""A sweep: what is run, what is shared, what is kept, what wins, and what is never done twice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from training import work

import inlay
from inlay.errors import InlayError, RunError
from inlay.runs import inputs
from inlay.runs.run import from_config
from inlay.sweeps.store import Store
from inlay.tasks.classification import Classification

GRID = {"method": "houlsby,adapterbias", "size": [4, 8], "lr": [1e-3, 1e-2]}


def run(**settings: Any) -> inlay.Run:
    return inlay.Run(**{"data": work.texts(30), "batch_size": 4, "epochs": 1, "val_size": 9, **settings})


class Heard:
    """Counts events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events)


@pytest.fixture(scope="module")
def found() -> inlay.Sweep:
    return inlay.sweep(work.host(), run(), GRID, seeds=2)


# --- what is run --------------------------------------------------------------------------------------------------


def test_every_setting_with_every_seed(found: inlay.Sweep):
    assert len(found.rows) == 6 * 2
    assert {row.state for row in found.rows} == {"done"}
    assert {row.seed for row in found.rows} == {0, 1}
    assert found.keys == ("method", "size", "lr")
    assert Counter(row.config["method"] for row in found.rows if "method" in row.config) == {
        "houlsby:size=4": 4,
        "houlsby:size=8": 4,
        "adapterbias": 4,
    }
    assert all(row.tokens > 0 and row.seconds > 0 and row.history for row in found.rows)


def test_a_run_of_a_sweep_is_the_run_alone(found: inlay.Sweep):
    row = next(
        row for row in found.rows if row.setting == {"method": "houlsby", "size": 8, "lr": 0.01} and row.seed == 1
    )
    alone = inlay.train(work.host(), inlay.Run(**{**row.config, "data": work.texts(30)}))
    assert alone.metrics["validation"].keys() == row.metrics["validation"].keys()
    for name, value in alone.metrics["validation"].items():
        assert row.metrics["validation"][name] == pytest.approx(value, abs=1e-4)
    assert row.parameters == alone.parameters
    assert row.history[-1]["loss"] == pytest.approx(alone.history[-1]["loss"], abs=1e-4)


def test_seeds_begin_with_the_runs_own():
    found = inlay.sweep(work.host(), run(seed=5), {}, seeds=3)
    assert [row.seed for row in found.rows] == [5, 6, 7]


def test_one_loop_has_mixed_methods_side_by_side():
    heard = Heard()
    inlay.sweep(work.host(), run(), GRID, slots=4, callbacks=[heard])
    steps = [event["run"] for event in heard.events if event["event"] == "step"]
    assert len({name.partition(" ")[0] for name in steps[:4]}) == 1
    assert len(set(steps[:4])) == 4
    assert {name.partition(" ")[0] for name in steps} == {"houlsby", "adapterbias"}


def test_random_draws_are_run():
    grid = {"lr": "1e-4..1e-1", "size": "2..8"}
    found = inlay.sweep(work.host(), run(), grid, random=4)
    assert len(found.rows) == 4
    again = inlay.sweep(work.host(), run(), grid, random=4)
    assert [row.id for row in again.rows] == [row.id for row in found.rows]


def test_a_run_that_diverges_does_not_stop_the_others():
    found = inlay.sweep(work.host(), run(clip=None), {"lr": [1e-3, 1e30]})
    assert [row.state for row in found.rows] == ["done", "failed"]
    assert "lower learning rate" in found.rows[1].error
    assert [entry.setting["lr"] for entry in found.ranking] == [1e-3]


def test_a_sweep_in_which_nothing_ends_has_no_best():
    found = inlay.sweep(work.host(), run(clip=None), {"lr": [1e30]})
    with pytest.raises(RunError, match="no run of sweep has finished: "):
        _ = found.best


# --- data is read once --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_ninety_trials_read_and_encode_the_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = "\n".join(f"{row['text']}\t{row['label']}" for row in work.texts(30, seed=99))
    file = tmp_path / "rows.tsv"
    file.write_text(f"text\tlabel\n{rows}\n")
    counts: Counter[str] = Counter()
    opened, encoded = inputs.open_splits, Classification.encode

    def count_open(*a: Any, **k: Any) -> Any:
        counts["open"] += 1
        return opened(*a, **k)

    def count_encode(self: Any, tokenizer: Any, examples: Any, *a: Any) -> Any:
        counts["encode"] += len(examples)
        return encoded(self, tokenizer, examples, *a)

    monkeypatch.setattr(inputs, "open_splits", count_open)
    monkeypatch.setattr(Classification, "encode", count_encode)
    grid = {"lr": [1e-3, 2e-3, 3e-3], "size": [2, 4, 8], "warmup": [0.0, 0.1]}
    given = inlay.Run(data=str(file), max_steps=1, val_size=9)
    found = inlay.sweep(work.host(), given, grid, seeds=5)
    assert len(found.rows) == 90
    assert counts == {"open": 1, "encode": 30}  # a split for every seed, all from the same 30 texts


def test_settings_that_change_rows_are_not_shared():
    found = inlay.sweep(work.host(), run(), {"max_length": [4, 32]})
    assert found.rows[0].tokens < found.rows[1].tokens


# --- never twice --------------------------------------------------------------------------------------------------


def test_finished_runs_are_not_repeated(tmp_path: Path):
    store = tmp_path / "a" / "s.sqlite"
    first, second, more = Heard(), Heard(), Heard()
    one = inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store, callbacks=[first])
    two = inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store, callbacks=[second])
    assert (first.count("begin"), second.count("begin")) == (2, 0)
    assert one.rows == two.rows
    three = inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2, 3e-3]}, store=store, seeds=2, callbacks=[more])
    assert more.count("begin") == 4
    assert len(three.rows) == 6


def test_the_same_run_in_other_words_is_not_repeated(tmp_path: Path):
    store = tmp_path / "s.sqlite"
    inlay.sweep(work.host(), run(), {"size": [4, 8]}, store=store)
    heard = Heard()
    found = inlay.sweep(work.host(), run(), {"method": "houlsby:size=8,norms"}, store=store, callbacks=[heard])
    assert heard.count("begin") == 1
    assert [row.setting["method"] for row in found.rows] == ["houlsby:size=8", "norms"]
    assert found.keys == ("method",)


@pytest.mark.parametrize("change", ["data", "base", "settings"])
def test_what_has_changed_is_run_again(tmp_path: Path, change: str):
    store = tmp_path / "s.sqlite"
    inlay.sweep(work.host(), run(), {"lr": [1e-3]}, store=store)
    heard = Heard()
    rows = [*work.texts(30)[:-1], {"text": "another text", "label": "pos"}] if change == "data" else work.texts(30)
    how = {"warmup": 0.0} if change == "settings" else {}
    host = work.host(1 if change == "base" else 0)
    inlay.sweep(host, run(data=rows, **how), {"lr": [1e-3]}, store=store, callbacks=[heard])
    assert heard.count("begin") == 1


def test_an_interrupt_saves_and_goes_on(tmp_path: Path):
    store = tmp_path / "s.sqlite"
    expected = inlay.sweep(work.host(), run(), GRID, slots=2, store=tmp_path / "whole.sqlite")

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3 and "size=8" in event["run"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inlay.sweep(work.host(), run(), GRID, slots=2, store=store, callbacks=[stop], save_every=1e9)
    heard = Heard()
    found = inlay.sweep(work.host(), run(), GRID, slots=2, store=store, callbacks=[heard])
    assert {e["step"] for e in heard.events if e["event"] == "begin"} == {0, 3}
    assert [(r.id, r.metrics, r.history, r.tokens) for r in found.rows] == [
        (r.id, r.metrics, r.history, r.tokens) for r in expected.rows
    ]


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_without_its_checkpoint_only_unfinished_runs_start_over(tmp_path: Path, damage: str):
    store = tmp_path / "s.sqlite"

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "begin" and "adapterbias" in event["run"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inlay.sweep(work.host(), run(), GRID, slots=1, store=store, callbacks=[stop])
    state = tmp_path / "s.sqlite.files" / "loop" / "state.safetensors"
    assert state.exists()
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes(b"nonsense")
    heard = Heard()
    found = inlay.sweep(work.host(), run(), GRID, slots=1, store=store, callbacks=[heard])
    assert heard.count("begin") == 2
    assert {row.state for row in found.rows} == {"done"}


def test_a_grid_that_grows_while_stopped_goes_on_with_the_old_runs(tmp_path: Path):
    store = tmp_path / "s.sqlite"

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store, callbacks=[stop])
    heard = Heard()
    found = inlay.sweep(work.host(), run(), {"lr": [1e-3, 3e-3, 1e-2]}, store=store, callbacks=[heard])
    assert sorted(e["step"] for e in heard.events if e["event"] == "begin") == [0, 3, 3]
    assert [row.state for row in found.rows] == ["done"] * 3


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path):
    files = tmp_path / "s.sqlite.files"
    (files / "loop").mkdir(parents=True)
    for folder in (files, files / "loop"):
        (folder / ".part-abc").write_bytes(b"half")
    inlay.sweep(work.host(), run(), {"lr": [1e-3]}, store=tmp_path / "s.sqlite")
    assert [file.suffix for file in files.iterdir()] == [".safetensors"]


def test_one_process_at_a_time(tmp_path: Path):
    with Store(tmp_path / "s.sqlite"), pytest.raises(RunError, match="another process is using"):
        inlay.sweep(work.host(), run(), {"lr": [1e-3]}, store=tmp_path / "s.sqlite")


@pytest.mark.parametrize("content", ["text", "database"])
def test_a_file_that_is_not_a_sweeps(tmp_path: Path, content: str):
    path = tmp_path / "s.sqlite"
    if content == "text":
        path.write_text("label,text\n" * 100)
    else:
        with sqlite3.connect(path) as database:
            database.execute("create table mine (x)")
        database.close()
    before = path.read_bytes()
    with pytest.raises(RunError, match="cannot be used as the file of a sweep"):
        inlay.sweep(work.host(), run(), {"lr": [1e-3]}, store=path)
    assert path.read_bytes() == before


# --- the best -----------------------------------------------------------------------------------------------------


def test_the_winner_goes_into_the_library(tmp_path: Path):
    library = inlay.Library(tmp_path / "library")
    host = work.host()
    found = inlay.sweep(
        host, run(), GRID, seeds=2, name="mine", store=tmp_path / "s.sqlite", best=True, library=library
    )
    entry = library.find("mine")
    assert (found.version, found.library) == (1, library.root)
    card = entry.card
    assert card["metrics"] == found.best.best.metrics
    assert from_config(card["config"]) == from_config(found.best.best.config)
    assert card["parents"] == [f"sweep:{found.best.best.id}"]
    summary = card["sweep"]
    assert (summary["runs"], summary["settings"], summary["seeds"]) == (12, 6, 2)
    assert (summary["mean"], summary["std"], summary["metric"]) == (found.best.mean, found.best.std, "accuracy")
    assert summary["varied"] == {"method": ["houlsby", "adapterbias"], "size": [4, 8], "lr": [1e-3, 1e-2]}
    host.load(library.get("mine"), "mine")
    assert host.predict([("mine", "a very good film")])
    assert {file.stem for file in (tmp_path / "s.sqlite.files").iterdir()} >= {found.best.best.id}
    kept = inlay.sweep(work.host(), run(), GRID, seeds=2, name="mine", store=tmp_path / "s.sqlite")
    for name, tensor in library.get("mine").tensors.items():
        assert torch.equal(kept.adapter.tensors[name], tensor)


def test_a_winner_whose_adapter_is_gone_is_trained_again(tmp_path: Path):
    library, store = inlay.Library(tmp_path / "library"), tmp_path / "s.sqlite"
    first = inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store, slots=1)
    for file in (tmp_path / "s.sqlite.files").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(RunError, match="was not kept"):
        _ = first.adapter
    heard = Heard()
    inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store, callbacks=[heard], best=True, library=library)
    assert heard.count("begin") == 1
    assert library.find("sweep").card["metrics"] == first.best.best.metrics


def test_only_adapters_that_may_win_are_kept(tmp_path: Path):
    found = inlay.sweep(work.host(), run(), GRID, seeds=2, store=tmp_path / "s.sqlite")
    kept = {file.stem for file in (tmp_path / "s.sqlite.files").iterdir()}
    assert {row.id for row in found.best.runs} <= kept
    assert len(kept) <= 4 < len(found.rows)


def test_select_is_checked_and_errors_are_ours():
    with pytest.raises(InlayError, match="select=worst is not valid"):
        inlay.sweep(work.host(), run(), {}, select="worst")  # type: ignore[arg-type]
    with pytest.raises(InlayError, match="a search needs a number of trials"):
        inlay.sweep(work.host(), run(), {"lr": [1, 2]}, search="optuna")
    with pytest.raises(InlayError, match="cannot be combined"):
        inlay.sweep(work.host(), run(), {"lr": [1, 2]}, search="optuna", trials=2, random=3)


def test_a_metric_to_report_is_that_of_the_task():
    found = inlay.sweep(work.host(), run(metric="accuracy", max_steps=2), {"lr": [1e-3, 1e-2]}, report="f1_macro")
    assert (found.metric, found.report) == ("accuracy", "f1_macro")
    best = found.best.best.metrics["validation"]
    assert found.document()["ranking"][0]["reported"] == {"metric": "f1_macro", "validation": best["f1_macro"]}
    with pytest.raises(inlay.InlayError, match="unknown metric 'exact' for this classification task"):
        inlay.sweep(work.host(), run(max_steps=2), {"lr": [1e-3, 1e-2]}, report="exact")
