"""Whether compiled layers pay: compiling takes time, a little of it comes back with every step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from inlay.engine.host import Host
from inlay.training.job import Job, rows_of_a_step

_COST = 60.0
"""Seconds to compile a layer for training and for evaluation, on a slow machine."""
_PER_STEP = 1.5e-3
_PER_TOKEN = 4.5e-7
"""Seconds saved on an H200, for 12 layers of width 768 (docs/performance.md)."""
_LIKE = 12 * 768


def pays(host: Host, jobs: Sequence[Job], slots: int) -> bool:
    """Whether these runs are long enough to compile for."""
    sites = host.base.sites
    steps = tokens = 0.0
    means: dict[int, float] = {}  # runs share their rows
    for job in jobs:
        for stage in job.stages:
            if id(stage.rows) not in means:
                means[id(stage.rows)] = sum(len(row.ids) for row in stage.rows) / max(1, len(stage.rows))
            mean = means[id(stage.rows)]
            steps += stage.steps / max(1, min(slots, len(jobs)))
            tokens += stage.steps * rows_of_a_step(job.data.run, stage.kind) * mean
    saved = steps * _PER_STEP * sites.layers / 12 + tokens * _PER_TOKEN * sites.layers * sites.hidden / _LIKE
    return saved > _COST


@contextmanager
def compiled(host: Host, jobs: Sequence[Job], slots: int) -> Iterator[None]:
    """Run layers as compiled code for a while, if the host says so, or leaves it open and it pays."""
    before = host.forward.compiled
    if host.compile is None and host.forward.kernels:
        host.forward.compiled = pays(host, jobs, slots)
    try:
        yield
    finally:
        host.forward.compiled = before


def graphs() -> int:
    """How many pieces of code have been compiled in this process; 0 if none was."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported for this: that takes a second
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
