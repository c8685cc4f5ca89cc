"""How thoroughly a tier tries a property: the quick one takes a quarter of the examples.

`make test-rest` sets INLAY_TEST_TIER=full, and runs every property again with all of them.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

FULL = os.environ.get("INLAY_TEST_TIER") == "full"


def examples(full: int = 100, **more: Any) -> settings:
    return settings(max_examples=full if FULL else max(10, full // 4), deadline=None, **more)
