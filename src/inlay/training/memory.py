"""How many runs fit side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from inlay.bank.delta import Method, WeightMethod
from inlay.base import free_memory as limits
from inlay.base.sites import Sites, config_of
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.training.job import Job, rows_of_a_step

TOO_LARGE = "{} does not fit in memory even on its own; try a smaller batch_size or max_length"
_MOST = {"cuda": 64, "cpu": 16}
_SHARE = 0.5
"""The share of free memory to use: the estimate is rough, and other programs need memory too."""
PER_TOKEN = 30
"""Numbers kept for the backward pass, per token, layer and unit of width."""


PER_PROBABILITY = 4
"""Numbers kept for every attention probability that may be dropped."""


def slots_for(host: Host, jobs: Sequence[Job]) -> int:
    """As many slots as fit into half of the free memory, at least one."""
    device = host.base.device
    sharing: dict[tuple[int, ...], list[Job]] = {}  # most runs share their rows
    for job in jobs:
        sharing.setdefault(tuple(id(stage.rows) for stage in job.stages), []).append(job)
    need = 1
    for jobs_alike in sharing.values():
        long = _long_row(jobs_alike[0])
        need = max(need, *(_bytes(host, job, long) for job in jobs_alike))
    return max(1, slots_in(free_memory(device), need, device.type, len(jobs)))


def slots_in(free: int, need: int, device: str, runs: int) -> int:
    """How many runs that need this much each fit into half of this memory; 0 if not even one does."""
    return min(_MOST.get(device, 1), runs, int(_SHARE * free / need))


def run_bytes(sites: Sites, method: Method, rows: int, length: int, width: int) -> int:
    """What one run needs beside the base.

    Args:
        rows, length: rows of a step, and the tokens of a long one.
        width: bytes of a number in the base.
    """
    activations = rows * length * sites.layers * sites.hidden * PER_TOKEN * width
    trained = sum(p.numel for p in method.params(sites).values() if not p.is_fixed)
    copies = 4 + 1 + 2 * isinstance(method, WeightMethod)  # value, gradient, two moments, best; base + difference
    return int(activations + 4 * trained * copies)


def _long_row(job: Job) -> int:
    """The tokens of a long row."""
    lengths = sorted(len(row.ids) for stage in job.stages for row in stage.rows)
    return lengths[int(0.95 * (len(lengths) - 1))]


def _bytes(host: Host, job: Job, long: int) -> int:
    data = job.data
    rows = max(rows_of_a_step(data.run, stage.kind) for stage in job.stages)
    probabilities = 0
    if data.run.attention_dropout:  # attention is then computed step by step, and all of it is kept
        heads = config_of(host.base.model).num_attention_heads
        probabilities = 4 * PER_PROBABILITY * rows * heads * long * long * host.base.sites.depth
    return run_bytes(host.base.sites, data.method, rows, long, host.base.dtype.itemsize) + probabilities


def free_memory(device: torch.device) -> int:
    """Bytes that are free now: of the GPU, or of what this process may take of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return limits.free()


def refuse_too_large(job: Job) -> NoReturn:
    """A run that has no room even by itself."""
    raise RunError(TOO_LARGE.format(job.name))
