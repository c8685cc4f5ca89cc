"""What the quick tier leaves to the full one: cases of a test with many, and most examples of a property.

`make test-rest` sets INLAY_TEST_TIER=full, runs what `make test` has left out, and every property again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from hypothesis import settings

FULL = os.environ.get("INLAY_TEST_TIER") == "full"


def examples(full: int = 100, **more: Any) -> settings:
    """How many examples a property is tried with: in the quick tier a quarter of them."""
    from hypothesis import settings

    return settings(max_examples=full if FULL else max(10, full // 4), deadline=None, **more)


def thin(items: Iterable[pytest.Item]) -> None:
    """Of the cases of a test with `thin(n)`, all but n are for the full tier.

    The first stays, and n - 1 others by a checksum of their names, so that they are spread over all parameters and a
    new case does not change which of the old ones are run.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thin"):
            cases[item.nodeid.split("[")[0]].append(item)
    for first, *others in cases.values():
        kept = first.get_closest_marker("thin").args[0] - 1
        for item in sorted(others, key=lambda item: crc32(item.name.encode()))[kept:]:
            item.add_marker(pytest.mark.full)


def missing_browser(skipped: Iterable[Any]) -> str:
    """What to say of tests that were skipped for lack of a browser; nothing if there are none."""
    count = sum("needs chromium" in str(report.longrepr) for report in skipped)
    return f"tests that need a browser were skipped: {count}. To run them: apt-get install chromium" if count else ""
