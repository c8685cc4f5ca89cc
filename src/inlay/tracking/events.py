"""The events that a training passes to its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
"""{"event": "step", "run": ...}; events are begin, step, eval, stage, done, failed, pruned, slots, compiled and saved;
of a sweep on Ray also workers, joined, and lost for a run that starts over."""
Callback = Callable[[Event], None]
