"""Search: ask and tell, a pruner that frees slots at once, and going on."""

from __future__ import annotations

import builtins
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from training import work

import inlay
from inlay.errors import RunError
from inlay.methods.adapterbias import AdapterBias

SPACE = {"method": "houlsby,adapterbias", "size": "2..8", "lr": "1e-4..1e-1"}


@pytest.fixture
def optuna() -> Any:
    return pytest.importorskip("optuna")


def run(**settings: Any) -> inlay.Run:
    """Numbers to learn: the metric has many values, so that half of the trials are worse than the median."""
    how = {
        "data": work.ratings(50),
        "task": "regression",
        "batch_size": 4,
        "epochs": 3,
        "val_size": 20,
        "eval_every": 4,
    }
    return inlay.Run(**{**how, **settings})


EVALUATIONS = 6


def search(grid: Any = SPACE, trials: int = 8, callbacks: Any = (), **how: Any) -> inlay.Sweep:
    settings = how.pop("run", run())
    return inlay.sweep(work.host(), settings, grid, search="optuna", trials=trials, callbacks=callbacks, **how)


def test_as_many_settings_as_asked_for(optuna: Any):
    found = search(pruner="none", slots=3)
    assert [row.number for row in found.rows] == list(range(8))
    assert {row.state for row in found.rows} == {"done"}
    assert all(1e-4 <= row.setting["lr"] <= 1e-1 for row in found.rows)
    assert all(isinstance(row.setting.get("size", 2), int) for row in found.rows)
    assert {"size" in row.setting for row in found.rows if row.setting["method"] == "adapterbias"} <= {False}


def test_a_search_begins_anew_where_a_methods_own_learning_rate_has_changed(
    optuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its trials would be other ones under the same numbers."""
    grid, how = {"method": "adapterbias", "warmup": "0.1..0.3"}, {"store": tmp_path / "it.sqlite", "run": run(epochs=1)}
    with monkeypatch.context() as before:
        before.setattr(AdapterBias, "learning_rate", 1e-3)
        old = search(grid, trials=2, **how)
    new = search(grid, trials=3, **how)
    assert {row.config["lr"] for row in old.rows} == {1e-3}
    assert ({row.config["lr"] for row in new.rows}, len(new.rows)) == ({3e-3}, 3)


@pytest.mark.full
def test_a_search_is_repeatable_and_seeded(optuna: Any):
    first, again = search(slots=3), search(slots=3)
    assert [(r.id, r.state, r.history) for r in first.rows] == [(r.id, r.state, r.history) for r in again.rows]
    other = search(slots=3, run=run(seed=1))
    assert [row.setting for row in other.rows] != [row.setting for row in first.rows]


@pytest.mark.full
def test_what_is_told_matters(optuna: Any):
    """After the random ones, what is asked follows from what was told: with other labels it is something else."""
    flipped = [{**row, "label": -row["label"]} for row in work.ratings(50)]
    runs = [run(data=data, epochs=1) for data in (work.ratings(50), flipped)]
    settings = [[row.setting for row in search(trials=14, slots=1, pruner="none", run=one).rows] for one in runs]
    assert settings[0][:10] == settings[1][:10]
    assert settings[0][10:] != settings[1][10:]


def test_a_pruned_trial_frees_its_slot_at_once(optuna: Any):
    told: list[tuple[str, int]] = []

    def hear(event: dict[str, Any]) -> None:
        if event["event"] in ("begin", "step", "pruned", "done"):
            told.append((event["event"], event["index"]))

    found = search(trials=12, slots=2, callbacks=[hear])
    counts = Counter(row.state for row in found.rows)
    assert counts["pruned"] >= 1
    assert counts["pruned"] + counts["done"] == 12
    active: set[int] = set()
    pruned_then_begun = 0
    for i, (event, index) in enumerate(told):
        if event == "begin":
            active.add(index)
            assert len(active) <= 2
        elif event in ("pruned", "done"):
            active.remove(index)
            following = [e for e in told[i + 1 :] if e[0] in ("begin", "step")][:1]
            if event == "pruned" and following and following[0][0] == "begin":
                pruned_then_begun += 1
    last = max(i for i, (event, _) in enumerate(told) if event == "begin")
    assert pruned_then_begun == sum(event == "pruned" for event, _ in told[:last])
    for row in found.rows:
        if row.state == "pruned":
            assert 0 < len(row.history) < EVALUATIONS
            assert row.value == row.history[-1]["metrics"]["spearman"]
            assert row.id not in {run.id for entry in found.ranking for run in entry.runs}


@pytest.mark.full
def test_pruning_agrees_with_optuna(optuna: Any):
    """An oracle: the same values, reported in the same order to a study of our own, are pruned at the same places."""
    order: list[tuple[str, str]] = []

    def hear(event: dict[str, Any]) -> None:
        if event["event"] in ("eval", "done", "pruned"):
            order.append((event["event"], event["run"]))

    found = search(trials=12, slots=1, callbacks=[hear])
    rows = {row.label: row for row in found.rows}
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
    trials: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    hopeless: set[str] = set()
    for event, name in order:
        trial = trials.setdefault(name, None) or study.ask()
        trials[name] = trial
        if event == "eval":
            seen[name] += 1
            trial.report(rows[name].history[seen[name] - 1]["metrics"]["spearman"], seen[name])
            if trial.should_prune() and seen[name] < EVALUATIONS:
                hopeless.add(name)
        elif event == "done":
            study.tell(trial, rows[name].value)
        else:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    assert hopeless == {row.label for row in found.rows if row.state == "pruned"}
    assert hopeless


@pytest.mark.full
def test_seeds_of_a_setting_are_pruned_together(optuna: Any):
    found = search(trials=12, seeds=2, slots=4)
    assert len(found.rows) == 24
    states = [{row.state for row in found.rows if row.number == n} for n in range(12)]
    assert all(len(own) == 1 for own in states)
    assert {"pruned"} in states
    assert {"done"} in states


@pytest.mark.full
@pytest.mark.parametrize("pruner", ["median", "hyperband", "none"])
def test_pruners(optuna: Any, pruner: str):
    found = search(pruner=pruner, slots=4)
    assert len(found.rows) == 8
    assert found.best.best.state == "done"


@pytest.mark.full
def test_more_trials_go_on_where_the_last_ended(optuna: Any, tmp_path: Path):
    store = tmp_path / "s.sqlite"
    whole = search(trials=9, slots=1)
    begun: list[str] = []
    search(trials=4, slots=1, store=store)
    found = search(
        trials=9, slots=1, store=store, callbacks=[lambda e: e["event"] == "begin" and begun.append(e["run"])]
    )
    assert len(begun) == 5
    assert [(r.setting, r.state, r.history) for r in found.rows] == [
        (r.setting, r.state, r.history) for r in whole.rows
    ]


def test_a_search_uses_what_a_grid_has_run(optuna: Any, tmp_path: Path):
    store = tmp_path / "s.sqlite"
    inlay.sweep(work.host(), run(), {"lr": [1e-3, 1e-2]}, store=store)
    begun: list[str] = []
    found = search(
        {"lr": [1e-3, 1e-2, 3e-2]},
        trials=3,
        store=store,
        callbacks=[lambda e: e["event"] == "begin" and begun.append(e["run"])],
    )
    assert len(found.rows) == 3
    assert len(begun) == 1


@pytest.mark.full
def test_a_search_ends_when_there_is_nothing_new(optuna: Any):
    found = search({"lr": [1e-3, 1e-2]}, trials=6)
    assert sorted(row.setting["lr"] for row in found.rows) == [1e-3, 1e-2]


def test_mistakes(optuna: Any):
    with pytest.raises(RunError, match="nothing varies"):
        search({}, trials=2)
    with pytest.raises(RunError, match=r"unknown pruner 'medium'\. Did you mean median"):
        search(pruner="medium")
    with pytest.raises(RunError, match="a pruner is for a search"):
        inlay.sweep(work.host(), run(), {"lr": "1e-4,1e-3"}, pruner="median")
    with pytest.raises(RunError, match=r"unknown search 'optina'\. Did you mean optuna"):
        inlay.sweep(work.host(), run(), SPACE, search="optina", trials=3)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch):
    import sys

    imported = builtins.__import__
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert builtins.__import__ is imported
    with pytest.raises(RunError, match=r"pip install 'inlay\[sweep\]'"):
        search()
