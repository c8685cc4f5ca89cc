"""The data of a sweep's trials: read once, and what they share is what each would have read."""

import json
from typing import Any

import pytest
from training import work

from inlay.runs.prepare import prepare
from inlay.sweeps import trial

SEEDS = (0, 1, 2)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    found = {"read": 0, "prepare_taught": 0}
    for name in found:
        plain = getattr(trial, name)

        def counted(*given: Any, name: str = name, plain: Any = plain) -> Any:
            found[name] += 1
            return plain(*given)

        monkeypatch.setattr(trial, name, counted)
    return found


@pytest.mark.parametrize(
    ("settings", "prepared"),
    [
        ({"val": "val.jsonl"}, 1),
        ({"val": "val.jsonl", "test": "test.jsonl"}, 1),
        ({"val": "val.jsonl", "train_size": 20}, 3),
        ({"val_size": 8}, 3),
    ],
)
def test_every_seed_has_the_data_it_would_have_alone(counts, settings, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("val", "test"), 1):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, work.texts(8, seed=i))))
    host, data = work.host(), work.texts(40)
    shared = trial.Data(host)
    runs = [work.run(data, seed=seed, lr=lr, **settings) for lr in (1e-3, 1e-2) for seed in SEEDS]
    found = [shared.prepare(run) for run in runs]
    assert counts == {"read": 1, "prepare_taught": prepared}
    for run, one in zip(runs, found, strict=True):
        alone = prepare(run, host)
        assert (one.run.seed, one.run.lr) == (run.seed, run.lr)
        assert one.data_hash == alone.data_hash
        assert one.notes == alone.notes
        for split in ("train", "validation", "test"):
            mine, theirs = getattr(one, split), getattr(alone, split)
            assert (mine is None) == (theirs is None)
            assert mine is None or [list(row.ids) for row in mine.rows] == [list(row.ids) for row in theirs.rows]
    assert len({one.data_hash for one in found}) == prepared
