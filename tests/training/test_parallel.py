"""Several processes that share every batch follow one process that has it all, and stay equal to each other.

In fp32 with Gloo on the CPU, with dropout on. The control leaves the exchange of gradients out, and must be noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.errors import RunError
from inlay.library.library import Library
from inlay.tasks import Row, Targets, parse
from inlay.training.parallel import ALONE, Share, joined, share

PROGRAM = Path(__file__).with_name("sharing.py")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    return played(tmp_path_factory.mktemp("sharing"))


@pytest.fixture(scope="module")
def few_alone(tmp_path_factory) -> dict[str, Any]:
    return played(tmp_path_factory.mktemp("few"), "few alone")["few alone"][0]


def played(folder: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    command = [sys.executable, str(PROGRAM), str(folder), *names]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(ran.stdout)
    return found


def assert_follows(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["problems"] == expected["problems"] == [""] * len(expected["losses"])
    for ours, theirs in zip(found["losses"], expected["losses"], strict=True):
        assert len(theirs) >= 8
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert found["best"] == expected["best"]
    for ours, theirs in zip(found["metrics"], expected["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for split in theirs:
            assert ours[split] == pytest.approx(theirs[split], abs=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("shared", "alone"),
    [
        ("tags in 2", "tags alone"),
        ("tags in 3", "tags alone"),
        ("many in 2", "many alone"),
        ("written", "tags alone"),
        ("short of memory", "many alone"),
    ],
)
def test_processes_follow_one_and_are_equal(scenes, shared, alone):
    for found in scenes[shared]:
        few = {key: value[: len(found["losses"])] for key, value in scenes[alone][0].items()}
        assert_follows(found, few)
        assert found["hashes"] == scenes[shared][0]["hashes"]


@pytest.mark.full
def test_without_the_exchange_they_are_not(scenes):
    first, second = scenes["kept apart"]
    assert first["hashes"] != second["hashes"]
    with pytest.raises(AssertionError):
        assert_follows(first, scenes["tags alone"][0])


@pytest.mark.full
def test_stopped_and_resumed_it_ends_the_same_and_the_leader_alone_writes(scenes):
    leader, other = scenes["written"]
    assert leader["hashes"] == scenes["tags in 2"][0]["hashes"]
    assert leader["events"] > 8
    assert other["events"] == 0
    assert leader["left"] is False
    assert (leader["versions"], other["versions"]) == ([1], [None])


@pytest.mark.full
def test_memory_that_one_lacks_all_lack(scenes):
    assert scenes["short of memory"][0]["slots"] == [1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("scene", "hit"),
    [
        ("in a step", ["prepare"]),
        ("before the exchange", ["adding"]),
        ("where a batch is sent", ["on_device"]),
        ("at begins and ends", ["finish", "load", "measured"]),
        ("in an evaluation", ["outputs_of"]),
    ],
)
def test_memory_that_one_lacks_anywhere_all_lack(scene, hit, few_alone, tmp_path):
    first, second = played(tmp_path, scene)[scene]
    assert second["hit"] == hit
    for found in (first, second):
        assert_follows(found, few_alone)
        assert found["hashes"] == first["hashes"]


def test_one_that_fails_stops_the_others_with_a_reason(scenes):
    told, failed = scenes["failing"]
    assert "process 0 of 2 cannot continue: another process stopped" in told["error"]
    assert failed == {}


# --- shares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("lengths", [[5], [3, 3], [1, 50, 2, 9, 9, 4], [4] * 16], ids=str)
def test_every_row_counts_once(lengths, size):
    shares = [share(lengths, rank, size) for rank in range(size)]
    real = [s for s in shares if s.counts]
    assert [i for s in real for i in range(*s.rows)] == list(range(len(lengths)))
    assert [i for s in real for i in range(*s.tokens)] == list(range(sum(lengths)))
    assert all(s.rows[1] > s.rows[0] for s in shares)  # there is always something to run


def test_tokens_not_rows_are_shared_evenly():
    first, second = (share([30, 10, 10, 10], rank, 2) for rank in range(2))
    assert (first.rows, second.rows) == ((0, 1), (1, 4))


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_the_shares_targets_are_those_of_the_whole(kind):
    task = parse(kind)
    rows = [
        Row([1] * n, target=i % 2 if kind == "classification" else [i % 2, 1], aux=[(1, 0), (2, 1)])
        for i, n in enumerate((4, 9, 3, 5, 7))
    ]
    whole = task.targets(rows, [1.0, 3.0])
    outputs = torch.arange(sum(len(r.ids) for r in rows) if task.per_token else len(rows))
    seen, weights = [], []
    for rank in range(3):
        mine = share([len(r.ids) for r in rows], rank, 3)
        found = mine.of(whole, task)
        seen += outputs[slice(*(mine.tokens if task.per_token else mine.rows))][found.at].tolist()
        weights += found.weight.tolist()
    assert seen == whole.at.tolist()
    assert weights == whole.weight.tolist()
    assert sum(weights) == pytest.approx(1)


def test_a_unit_over_rows_of_two_processes_is_refused():
    targets = Targets(np.array([[0, 1], [2, -1]]), np.zeros(2), np.ones(2))
    task = parse("classification")
    assert len(Share((0, 2), (0, 9)).of(targets, task).at) == 1
    with pytest.raises(RunError, match="cannot be shared among processes"):
        Share((0, 1), (0, 4)).of(targets, task)


def test_a_row_that_others_have_too_counts_nothing():
    targets = Targets(np.arange(1), np.zeros(1), np.ones(1))
    ghost = next(s for s in (share([5], 0, 2), share([5], 1, 2)) if not s.counts)
    assert len(ghost.of(targets, parse("classification")).at) == 0


# --- the command line ---------------------------------------------------------------------------------------------


def test_outside_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as ranks:
        assert ranks is ALONE
    monkeypatch.setenv("WORLD_SIZE", "4")  # some other program's
    with joined() as ranks:
        assert ranks is ALONE


def test_torchrun_is_for_training(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = CliRunner().invoke(app, ["library", "list"])
    assert ran.exit_code == 1
    assert "torchrun is for inlay train; inlay library would run in every process" in ran.stderr


@pytest.mark.full
def test_torchrun(tmp_path):
    base = tiny.save_text_model(tmp_path / "base")
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(24)), encoding="utf-8")
    train = ["train", str(data), "--name", "it", "--base", base, "--epochs", "1", "--json"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "inlay.cli.main"]
    command = [sys.executable, *start, *train, "--library", str(tmp_path / "shared")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    shared = json.loads(ran.stdout)  # one document, from one process
    alone = json.loads(CliRunner().invoke(app, [*train, "--library", str(tmp_path / "alone")]).stdout)
    assert shared["metrics"]["validation"] == pytest.approx(alone["metrics"]["validation"], abs=1e-4)
    assert shared["version"] == 1
    assert Library(tmp_path / "shared").names() == ["it"]
    assert not list((tmp_path / "shared" / "runs").glob("*/*"))
