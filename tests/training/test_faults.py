"""A training that is killed at any moment, also while it writes, and resumed gives the files it would have given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killing.py")


def kill(folder: Path, kills: int, seed: int, files: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(folder / files), str(kills), str(seed), files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)


def told(folder: Path, kills: int, seed: int, files: str) -> dict[str, Any]:
    """What the program says, after the checks that hold for any way of killing."""
    done = kill(folder, kills, seed, files)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["kills"] == kills
    assert report["resumes"] >= kills // 2, "most were killed before there was anything to resume"
    assert report["found"]
    for found in report["found"]:
        assert found == report["expected"]
    assert report["left"] == ["finished"], "the checkpoint is still there"
    return report


@pytest.mark.full
def test_ten_kills_at_any_moment(tmp_path):
    told(tmp_path, 10, 2, "plain")


@pytest.mark.full
def test_ten_kills_half_of_them_inside_writes(tmp_path):
    assert told(tmp_path, 10, 3, "slow")["in_writes"] >= 5


@pytest.mark.slow
def test_a_checkpoint_that_is_written_in_place_is_noticed(tmp_path):
    """The control."""
    done = kill(tmp_path, 20, 4, "torn")
    assert done.returncode != 0
    assert "is not a checkpoint" in done.stderr
