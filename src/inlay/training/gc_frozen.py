"""The garbage collector, kept from going through a base and all rows again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Keep the collector from what is alive now. An evaluation makes so many objects that it would go through all of it
    several times, for up to a third of the evaluation's time."""
    is_outermost = not gc.get_freeze_count()  # else an outer call has done it, and will undo it
    if is_outermost:
        gc.freeze()
    try:
        yield
    finally:
        if is_outermost:
            gc.unfreeze()
