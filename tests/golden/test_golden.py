"""Files of every format that was ever written are read, and answer what they answered when they were made (make.py)."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import inlay
from inlay.sweeps.store import read_rows

HERE = Path(__file__).parent
FORMATS = sorted(folder.name for folder in HERE.glob("format*"))
TEXTS = ("a good film", "the soup was awful , never", "ana meets bob in lima", "where is my parcel ?")
ASKED = {
    "tone": "a good film",
    "both": "a good film",
    "same": ("a good film", "it was bad"),
    "stars": "good good film",
    "topics": "the soup , the film",
    "names": ["ana", "meets", "bob", "in", "lima"],
}
_hosts: dict[str, inlay.Host] = {}


def host(name: str) -> inlay.Host:
    if name not in _hosts:
        _hosts[name] = inlay.Host(str(HERE / name / "base"), device="cpu", dtype=torch.float32)
    return _hosts[name]


def expected(name: str) -> Any:
    return json.loads((HERE / name / "expected.json").read_text())


def assert_like(found: Any, wanted: Any, where: str) -> None:
    """Equal, numbers up to 1e-5; what is found may say more."""
    if isinstance(wanted, Mapping):
        assert set(wanted) <= set(found), where
        for key, value in wanted.items():
            assert_like(found[key], value, f"{where} {key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_like(one, other, f"{where} {i}")
    elif isinstance(wanted, float):
        assert math.isclose(found, wanted, rel_tol=1e-5, abs_tol=1e-5), f"{where}: {found}, was {wanted}"
    else:
        assert found == wanted, where


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError, match=r"a 0 b: 0\.5, was 0\.501"):
        assert_like([{"b": 0.5}], [{"b": 0.501}], "a")


@pytest.mark.parametrize("name", FORMATS)
def test_adapters_answer_as_they_did(name):
    made = host(name)
    known = expected(name)["adapters"]
    assert len(known) > 15
    for file, wanted in known.items():
        made.load(inlay.Adapter.read(HERE / name / "adapters" / file), "x")
        answers = [{**answer, "task": "y"} for answer in made.predict([("x", text) for text in TEXTS])]
        made.unload("x")
        assert_like(answers, wanted["answers"], f"{file} ({wanted['method']})")


@pytest.mark.parametrize("name", FORMATS)
def test_a_library_is_what_it_was(name, tmp_path):
    shutil.copytree(HERE / name / "library", tmp_path / "library")
    library, made = inlay.Library(tmp_path / "library"), host(name)
    assert library.verify() == []
    assert library.versions("tone") == [1, 2, 3]
    assert library.aliases("tone") == {"prod": 2}
    assert [move.version for move in library.alias_history("tone", "prod")] == [1, 2]
    assert [entry.ref for entry in library.removed()] == ["gone@1", "topics@1"]
    for ref, wanted in expected(name)["library"].items():
        task = ref.partition("@")[0]
        made.load(library.get(ref), "x")
        answers = made.predict([("x", ASKED[task])])
        made.unload("x")
        assert_like([{**answers[0], "task": task}], wanted, ref)
    assert library.restore("topics")[0].ref == "topics@1"
    assert library.find("gone").version == 2
    entry = library.put(library.get("tone@2"), "tone")
    assert entry.version in (3, 4)
    assert library.verify() == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_sweep_goes_on_where_it_was(name, tmp_path, monkeypatch):
    for one in ("sweep.db", "rows.csv"):
        shutil.copy(HERE / name / one, tmp_path)
    shutil.copytree(HERE / name / "sweep.db.files", tmp_path / "sweep.db.files")
    monkeypatch.chdir(tmp_path)
    wanted = expected(name)["sweep"]
    assert {row.id: row.value for row in read_rows("sweep.db")} == {k: v["value"] for k, v in wanted["rows"].items()}
    told: list[str] = []
    run = inlay.Run(
        data="rows.csv", method="adapterbias", epochs=2, batch_size=8, val_size=8, max_steps=6, choose_by="score"
    )
    grid = {"lr": [1e-3, 1e-2]}
    found = inlay.sweep(
        host(name), run, grid, store="sweep.db", name="tone", callbacks=[lambda event: told.append(event["event"])]
    )
    assert told == [], "runs that were done are not repeated"
    rows = {row.id: {"value": row.value, "metrics": row.metrics, "config": row.config} for row in found.rows}
    assert_like(rows, wanted["rows"], "rows")
    assert found.best.best.id == wanted["best"]
    assert found.adapter.method == "adapterbias"


@pytest.mark.parametrize("name", FORMATS)
def test_a_training_goes_on_where_it_was(name, tmp_path, monkeypatch):
    shutil.copytree(HERE / name / "checkpoint", tmp_path / "checkpoint")
    shutil.copy(HERE / name / "rows.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    how = {
        "data": "rows.csv",
        "lr": 3e-3,
        "batch_size": 8,
        "val_size": 8,
        "warmup": 0.1,
        "clip": 1.0,
        "choose_by": "score",
    }
    runs = [
        inlay.Run(name="short", method="adapterbias", epochs=1, **how),
        inlay.Run(name="long", method="houlsby:size=4", epochs=5, **how),
    ]
    steps: list[str] = []

    def hear(event: Mapping[str, Any]) -> None:
        if event["event"] == "step":
            steps.append(event["run"])

    made = inlay.Host(str(HERE / name / "base"), device="cpu", dtype=torch.float32)
    results = inlay.train(made, runs, checkpoint="checkpoint", resume=True, callbacks=[hear])
    wanted = expected(name)["training"]
    assert set(steps) == {"long"}
    assert len(steps) == len(wanted[1]["losses"]) - 7
    for result, before in zip(results, wanted, strict=True):
        assert_like({key: getattr(result, key) for key in before}, before, result.name)
