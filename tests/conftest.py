"""Tiny models run faster on one thread than on several. Without a GPU, Triton's kernels run in its interpreter.

Caches go to a folder that lives as long as the tests: also those of commands that tests start. What only hands tests
out to workers (`-n 2`) needs no torch.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from zlib import crc32

import pytest

_CACHE = tempfile.TemporaryDirectory(prefix="inlay-tests-", ignore_cleanup_errors=True)
os.environ["INLAY_CACHE"] = _CACHE.name


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ:
        return
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with `thin(n)`, all but n are for the full tier: the first stays, and n - 1 anywhere."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thin"):
            cases[item.nodeid.split("[")[0]].append(item)
    for first, *others in cases.values():
        kept = first.get_closest_marker("thin").args[0] - 1
        for item in sorted(others, key=lambda item: crc32(item.name.encode()))[kept:]:
            item.add_marker(pytest.mark.full)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped for lack of a browser, and what would run it."""
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if "needs chromium" in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests need a browser and were skipped. To run them: apt-get install chromium", yellow=True
        )
