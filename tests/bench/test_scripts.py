"""Scripts in bench/ are run by hand, so that nothing else notices when what they import has moved."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = [path for path in sorted(BENCH.rglob("*.py")) if path.parent.name != "peers"]  # which need their peers


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCH)))
def test_a_script_can_be_imported(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(path.parent), str(BENCH), *sys.path])
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
