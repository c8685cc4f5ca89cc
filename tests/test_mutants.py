"""The list of faults is kept up: every one can be planted, and every package has some."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import mutants
import pytest

FAULTS = mutants.read()
PACKAGES = {path.parent.name for path in (mutants.ROOT / "src/inlay").glob("*/__init__.py")}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.what}")
def test_a_fault_applies(fault: mutants.Fault):
    assert fault.problem() == ""


def test_there_are_enough_and_none_is_listed_twice():
    assert len(FAULTS) >= 60
    assert [places for places, n in Counter((f.file, f.before, f.after) for f in FAULTS).items() if n > 1] == []


def test_every_package_has_some():
    assert {fault.package for fault in FAULTS} >= PACKAGES


def test_a_line_that_has_vanished_or_is_there_twice_is_told():
    gone = mutants.Fault("registry.py", "there is no such line", "x", "test_registry.py", "")
    assert "0 times, not once" in gone.problem()
    twice = mutants.Fault("registry.py", "def ", "class ", "test_registry.py", "")
    assert "times, not once" in twice.problem()
    assert "there is no src/inlay/no.py" in mutants.Fault("no.py", "a", "b", "bank", "").problem()
    assert "there is no tests/nowhere" in replace(FAULTS[0], tests="nowhere").problem()


def test_it_is_planted_and_gone_again(tmp_path: Path):
    fault = next(fault for fault in FAULTS if fault.file == "metrics.py")
    path = tmp_path / "src/inlay/metrics.py"
    path.parent.mkdir(parents=True)
    shutil.copy(mutants.ROOT / "src/inlay/metrics.py", path)
    right = path.read_text()
    with fault.planted(tmp_path):
        assert path.read_text() == right.replace(fault.before, fault.after) != right
    assert path.read_text() == right
