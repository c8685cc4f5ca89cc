"""How fast a machine is, for `inlay plan`: measured here by what `inlay bench` runs, or in docs/performance.md.

Times of a step grow by a constant for every further run, so between two measured numbers of runs they lie on a line.
Another base's times are those of the measured one, times the ratio of their products: an estimate, and named as one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inlay.base import caches
from inlay.base.places import DEFAULT
from inlay.base.sites import Sites
from inlay.bench.measure import OURS
from inlay.bench.work import Say, Settings, compare, machine

BLOCKS: Mapping[str, Any] = {"repeats": 3, "steps": 1, "warmup": 1}
"""Settings of a short measurement: about a minute for the default base on two cores."""
_BUSY = 0.5
"""Load of other programs, by core, from which on a measurement says little."""
_RUNS = {"cuda": (1, 16, 64), "cpu": (1, 4)}
_TASKS = {"cuda": (1024, 256), "cpu": (64, 32)}
"""Rows and tasks of a mixed batch."""


@dataclass(frozen=True)
class Figures:
    """The speed of one machine, with one base and one method."""

    source: str
    """`this machine`, or where it is published."""
    machine: str
    device: str
    memory: int
    """Bytes of the device."""
    when: str
    version: str
    base: str
    products: int
    """Multiplications of that base for one token."""
    method: str
    step_tokens: float
    """Tokens of one run in one step."""
    step_ms: dict[int, float]
    """Runs side by side -> milliseconds of a step of all of them."""
    finetune_ms: float
    """A step of one full fine-tuning."""
    finetune_measured: bool
    batch_tokens: float
    batch_ms: float
    """A mixed batch of many tasks."""
    load: float = 0.0
    """The machine's load by core, before anything was measured."""

    @property
    def busy(self) -> bool:
        """Whether other programs used the machine too."""
        return self.load > _BUSY

    def training(self, runs: int) -> float:
        """Tokens a second of all runs together."""
        known = sorted(self.step_ms)
        low = max([n for n in known[:-1] if n <= runs], default=known[0])
        high = next((n for n in known if n > low), None)
        each = self.step_ms[low] / low  # with one point alone every run takes as long as the first
        if high is not None:
            each = (self.step_ms[high] - self.step_ms[low]) / (high - low)
        return 1000 * runs * self.step_tokens / (self.step_ms[low] + each * (runs - low))

    def finetuning(self) -> float:
        """Tokens a second of one full fine-tuning."""
        return 1000 * self.step_tokens / self.finetune_ms

    def serving(self) -> float:
        """Tokens a second of mixed batches."""
        return 1000 * self.batch_tokens / self.batch_ms


H200 = Figures(
    source="docs/performance.md",
    machine="NVIDIA H200",
    device="cuda",
    memory=139 << 30,
    when="2026-11-15",
    version="0.1.0",
    base="bert-base",
    products=84_934_656,
    method="houlsby",
    step_tokens=32 * 32,
    step_ms={1: 3.6, 16: 21.7, 64: 80.5},
    # not measured: the bare base's step (3.7) with half as much again for the gradients of its weights, and AdamW for
    # 109 million numbers at the measured 1.6 ms for 154 million
    finetune_ms=1.5 * 3.7 + 1.6 * 109 / 154,
    finetune_measured=False,
    batch_tokens=1024 * 32,
    batch_ms=16.1,
)


def products_of(sites: Sites) -> int:
    """Multiplications of the layers' projections for one token."""
    calls = sites.depth // sites.layers
    return calls * sum(s.d_in * s.d_out for s in sites if s.layer is not None and s.norm is None)


def measure(base: str, shape: str | None, sites: Sites, method: str, most: int, say: Say, **blocks: Any) -> Figures:
    """Measure this machine for a minute or so; `blocks` are settings of the benchmark.

    Args:
        base, shape: a folder or hub name; or instead of it a shape, with random weights.
        most: do not train more runs side by side than this.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    arguments = {**BLOCKS, "method": method, **blocks}
    arguments |= {"base": base} if shape is None else {"shape": shape}
    settings = Settings("train", **arguments).settled()
    steps: dict[int, float] = {}
    for runs in (n for n in _RUNS.get(settings.device, (1,)) if n == 1 or n <= most):
        say(f"a step of {runs} run{'s' * (runs > 1)}")
        steps[runs] = (measured := compare(replace(settings, runs=runs)))["parties"][OURS]["cost_ms"]
    say("a step of full fine-tuning")
    full = compare(replace(settings, method="finetune"))["parties"][OURS]["cost_ms"]
    rows, tasks = _TASKS.get(settings.device, (64, 32))
    say(f"a batch of {tasks} tasks")
    rows = blocks.get("rows", rows)
    mixed = compare(replace(settings, work="mixed", rows=rows, tasks=tasks, loaded=tasks))
    machine_facts = measured["machine"]
    return Figures(
        source="this machine",
        machine=machine_facts["device"],
        device=settings.device,
        memory=device_memory(settings.device),
        when=machine_facts["when"],
        version=machine_facts["versions"]["inlay"],
        base=shape or base,
        products=products_of(sites),
        method=method,
        step_tokens=settings.rows * measured["tokens_per_row"],
        step_ms=steps,
        finetune_ms=full,
        finetune_measured=True,
        batch_tokens=rows * mixed["tokens_per_row"],
        batch_ms=mixed["parties"][OURS]["cost_ms"],
        load=load,
    )


def device_memory(device: str) -> int:
    """All memory of a device."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def keep(figures: Figures) -> Path | None:
    """Keep a measurement, instead of an older one of the same; None if caches are off."""
    folder = caches.folder("figures")
    if folder is None:
        return None
    key = json.dumps([figures.machine, figures.device, figures.base, figures.method])
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(figures), indent=1) + "\n")
        part.replace(file)
    except OSError:
        return None
    return file


def known(base: str, method: str) -> Figures:
    """The measurement kept on this machine, with this base and method if possible; else the published figures."""
    folder = caches.folder("figures")
    here = machine(Settings("train").settled())["device"]
    kept = [] if folder is None else [_read(file) for file in folder.glob("*.json")]
    of_machine = [figures for figures in kept if figures is not None and figures.machine == here]
    return max(of_machine, key=lambda f: (f.base == base, f.method == method, f.when), default=H200)


def default_base() -> str:
    """The base of every command without `--base`."""
    return os.environ.get("INLAY_BASE") or DEFAULT


def _read(file: Path) -> Figures | None:
    """A measurement that was kept; None if it is damaged or another version's."""
    try:
        fields = json.loads(file.read_text())
        fields["step_ms"] = {int(runs): float(ms) for runs, ms in fields["step_ms"].items()}
        figures = Figures(**fields)
        positive = [figures.finetune_ms, figures.batch_ms, figures.step_tokens, figures.products, figures.memory]
        return figures if figures.step_ms and min([*positive, *figures.step_ms.values()]) > 0 else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
