"""How many runs fit side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from inlay.bank.delta import WeightMethod
from inlay.engine.host import Host
from inlay.training.job import Job

_MOST = {"cuda": 64, "cpu": 16}
_SHARE = 0.5
"""Of what is free now: the estimate is rough, and others live here too."""
_PER_TOKEN = 30
"""Numbers kept for the backward pass, per token, layer and unit of width."""


def slots_for(host: Host, jobs: Sequence[Job]) -> int:
    """As many slots as fit into half of the free memory, at least one."""
    device = host.base.device
    most = _MOST.get(device.type, 1)
    need = max((_bytes(host, job) for job in jobs), default=1)
    return max(1, min(most, len(jobs), int(_SHARE * _free(device) / need)))


def _bytes(host: Host, job: Job) -> int:
    sites, run = host.base.sites, job.data.run
    width = host.base.dtype.itemsize
    lengths = sorted(len(row.ids) for stage in job.stages for row in stage.rows)
    long = lengths[int(0.95 * (len(lengths) - 1))]
    activations = run.batch_size * long * sites.layers * sites.hidden * _PER_TOKEN * width
    trained = sum(p.numel for p in job.data.method.params(sites).values())
    copies = (
        4 + 1 + 2 * isinstance(job.data.method, WeightMethod)
    )  # value, gradient, two moments, best; base + difference
    return int(activations + 4 * trained * copies)


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
