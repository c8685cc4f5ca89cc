"""What answering costs outside the model's own forward pass: Python calls, and CPU time of the calling thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest.mock import patch

from inlay.bank.forward import Forward


def python_calls(work: Callable[[], object]) -> int:
    """How many Python functions `work` enters, without those within `Forward.call`."""
    inside, found = 0, 0
    model = Forward.call.__code__

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside, found
        if event == "call":
            inside += frame.f_code is model or inside > 0
            found += inside == 0
        elif event == "return" and inside:
            inside -= 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def seconds(work: Callable[[], object], times: int = 50) -> float:
    """The median CPU time of `work` in this thread, without `Forward.call`; run it on one thread of torch's."""
    real, model, found = Forward.call, 0.0, []

    def timed(self: Forward, *given: Any) -> Any:
        nonlocal model
        began = time.thread_time()
        out = real(self, *given)
        model += time.thread_time() - began
        return out

    with patch.object(Forward, "call", timed):
        for _ in range(times):
            model, began = 0.0, time.thread_time()
            work()
            found.append(time.thread_time() - began - model)
    return sorted(found)[times // 2]
