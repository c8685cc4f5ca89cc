"""Tiny models run faster on one thread than on several. Without a GPU, Triton's kernels run in its interpreter.

Caches go to a folder that lives as long as the tests: also those of commands that tests start. The process that only
hands tests to workers (`-n 2`) needs no torch.
"""

from __future__ import annotations

import os
import signal
import tempfile

import pytest
import tiers

_CACHE = tempfile.TemporaryDirectory(prefix="inlay-tests-", ignore_cleanup_errors=True)
os.environ["INLAY_CACHE"] = _CACHE.name
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a process that a shell has put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ:
        return
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.thin(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = tiers.missing_browser(terminalreporter.stats.get("skipped", []))
    if said:
        terminalreporter.write_line(said, yellow=True)
