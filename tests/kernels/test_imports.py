"""Kernels are imported where they run, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import inlay

PACKAGE = Path(inlay.__file__).parent
TESTS = Path(__file__).parents[1]
WITHOUT_TRITON = {"__init__", "activations", "shared", "operators"}


def printed(code: str) -> str:
    """What a new interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(TESTS)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_triton_is_imported_in_the_kernels_alone():
    having = {
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import|from) triton\b", path.read_text(), re.MULTILINE)
    }
    assert Path("kernels/routed.py") in having
    assert {path.parent for path in having} == {Path("kernels")}
    assert not {path.stem for path in having} & WITHOUT_TRITON


@pytest.mark.full
def test_a_cpu_imports_no_kernel_and_needs_no_triton():
    code = """
import sys
sys.modules["triton"] = None  # importing it is an ImportError
import tiny
host = tiny.text_host("bert", num_hidden_layers=1)
for name, method in (("a", "houlsby:size=4"), ("b", "lora")):
    host.add(name, method, labels=2)
assert len(host.predict([("a", "a good film"), ("b", "awful")])) == 2
print(*sorted(name for name in sys.modules if name.startswith("inlay.kernels.")))
"""
    assert printed(code) == "inlay.kernels.activations inlay.kernels.shared"


@pytest.mark.full
def test_calling_an_operator_does_not_import_the_compiler():
    pytest.importorskip("triton")
    code = """
import sys, torch
from inlay.kernels.dropout import dropout
key = torch.zeros(0, dtype=torch.int32)
x = torch.zeros(0, 8, requires_grad=True)
dropout(x, key, key, torch.tensor(1, dtype=torch.int32), 0.1).sum().backward()
print("torch._dynamo" in sys.modules)
"""
    assert printed(code) == "False"
