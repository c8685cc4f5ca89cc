"""A sweep that is killed, and called again, ends with the table of one that was not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "killing.py"


def killed(folder: Path, kills: int, seed: int, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(folder), str(kills), str(seed), kind]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.full
@pytest.mark.parametrize("kind", ["grid", "ensemble", "search"])
def test_killed_twice_and_resumed(tmp_path: Path, kind: str):
    if kind == "search":
        pytest.importorskip("optuna")
    told = killed(tmp_path, 2, 1, kind)
    assert told["kills"] == 2
    assert told["resumed"] > 0
    assert told["repeated"] == []
    assert told["found"] == told["expected"]
    assert len(told["found"]) == {"grid": 32, "ensemble": 33, "search": 18}[kind]
    assert told["left"] == []


@pytest.mark.full
def test_the_comparison_sees_another_seed(tmp_path: Path):
    """The control."""
    told = killed(tmp_path, 0, 1, "other")
    assert len(told["found"]) == len(told["expected"])
    assert told["found"] != told["expected"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grid", "search"])
@pytest.mark.parametrize("seed", range(2, 7))
def test_killed_many_times(tmp_path: Path, seed: int, kind: str):
    told = killed(tmp_path, 6, seed, kind)
    assert told["repeated"] == []
    assert told["found"] == told["expected"]
