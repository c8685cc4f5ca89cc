"""Scripts of bench/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def study(request: pytest.FixtureRequest) -> ModuleType:
    """The script that a test's module names as SCRIPT."""
    script = request.module.SCRIPT
    spec = importlib.util.spec_from_file_location(f"{script.stem}_study", script)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made
