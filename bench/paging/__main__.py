"""Many more tasks than the bank has room for: is every answer right, and what does paging cost?

    python bench/paging --tasks 1000 --resident 64

A library of random adapters of several methods on the default base, with 2 to 5 labels each, served with little room.
First every task is asked each of its texts, in random order, which is the worst that paging can meet; then tasks are
drawn by Zipf's law, as popular ones are in life. Every answer is compared with `Host.predict` of that adapter alone.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
sys.path.insert(0, str(Path(__file__).parents[1] / "load"))

import torch
from clients import Load, run
from service import same, start, texts

import inlay

METHODS = ("lora:rank=8", "houlsby:size=16", "adapterbias", "bitfit")
EACH = 2
"""Texts of every task."""


class Scene:
    """Tasks in a library, and what every answer should be."""

    def __init__(self, library: inlay.Library, tasks: int):
        self.host = inlay.Host(device="cpu", dtype=torch.float32)
        self.answers: dict[tuple[str, str], dict[str, Any]] = {}
        pool, draw = texts(200), random.Random(0)
        for i in range(tasks):
            name = f"task{i:04}"
            made = self._adapter(name, METHODS[i % len(METHODS)], 2 + i % 4, seed=i)
            library.put(made)
            self.host.load(made)
            asked = draw.sample(pool, EACH)
            for text, answer in zip(asked, self.host.predict([(name, text) for text in asked]), strict=True):
                self.answers[name, text] = dict(answer)
            self.host.unload(name)
        self.asks = list(self.answers)

    def judge(self, task: str, text: str, found: dict[str, Any]) -> str:
        """What is wrong with an answer."""
        known = self.answers[task, text]
        return "" if "error" not in found and same(found, known) else f"{task}: {found}, alone {known}"

    def _adapter(self, name: str, method: str, labels: int, seed: int) -> inlay.Adapter:
        """An adapter whose weights matter."""
        host = self.host
        host.add("made", method, labels=[f"{name}-{i}" for i in range(labels)], pool="mean", seed=seed)
        noise = torch.Generator().manual_seed(seed)
        moved = {
            k: torch.randn(t.shape, generator=noise) * 0.1 for k, t in host.read("made").items() if "scale" not in k
        }
        host.write("made", moved)
        made = replace(host.adapter("made"), name=name)
        host.unload("made")
        return made


def zipf(asks: int, exponent: float, seed: int) -> Iterator[int]:
    """Places in the list of asks: task k of an order of its own comes up 1 / k^exponent as often as the first."""
    draw = random.Random(seed)
    tasks = list(range(asks // EACH))
    draw.shuffle(tasks)
    weights = list(itertools.accumulate((k + 1) ** -exponent for k in range(len(tasks))))
    while True:
        yield draw.choices(tasks, cum_weights=weights)[0] * EACH + draw.randrange(EACH)


def paging(port: int) -> dict[str, float]:
    """The counters of paging in /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return {key: float(value) for key, value in re.findall(r"^inlay_paging_(\w+?)_total (\S+)$", page, re.MULTILINE)}


def said(name: str, load: Load, counts: dict[str, float]) -> dict[str, Any]:
    """One line of the table."""
    asked = max(1.0, counts["hits"] + counts["misses"])
    row = {
        "answers": len(load.seconds),
        "wrong": len(load.wrong),
        "errors": len(load.errors),
        "per_second": load.rate,
        "p50_ms": 1000 * load.percentile(0.5),
        "p99_ms": 1000 * load.percentile(0.99),
        "hit_rate": counts["hits"] / asked,
        "reads": int(counts["reads"]),
        "read_ms": 1000 * counts["read_seconds"] / max(1.0, counts["reads"]),
        "loads": int(counts["loads"]),
        "load_ms": 1000 * counts["load_seconds"] / max(1.0, counts["loads"]),
    }
    print(f"{name:14}" + "".join(f"{v:11.2f}" if isinstance(v, float) else f"{v:11}" for v in row.values()), flush=True)
    for problem in [*load.errors[:3], *load.wrong[:3]]:
        print(f"    {problem[:300]}")
    return row


def main() -> int:
    """Build, serve, ask, report; 1 if an answer was wrong or missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--resident", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30, help="of the load by Zipf's law")
    parser.add_argument("--exponent", type=float, default=1.1)
    parser.add_argument("--port", type=int, default=8767)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        began = time.monotonic()
        scene = Scene(inlay.Library(folder / "library"), given.tasks)
        print(f"{given.tasks} tasks made in {time.monotonic() - began:.0f} s", flush=True)
        command = [sys.executable, "-m", "inlay.cli.main", "serve", "--port", str(given.port)]
        command += ["--resident", str(given.resident), "--library", str(folder / "library")]
        began = time.monotonic()
        service = start(command, given.port, folder / "log")
        print(f"ready after {time.monotonic() - began:.1f} s", flush=True)
        shuffled = list(range(len(scene.asks)))
        random.Random(1).shuffle(shuffled)
        loads = {
            "every task": (iter(shuffled), 3600.0),
            "Zipf": (zipf(len(scene.asks), given.exponent, 2), given.seconds),
        }
        found: dict[str, Any] = {"settings": {key: value for key, value in vars(given).items() if key != "json"}}
        try:
            print(" " * 14 + "".join(f"{name:>11}" for name in _COLUMNS))
            for name, (order, seconds) in loads.items():
                before = paging(given.port)
                load = asyncio.run(run(given.port, scene.asks, given.clients, seconds, scene.judge, order=order))
                after = paging(given.port)
                found[name] = said(name, load, {key: after[key] - before[key] for key in after})
        finally:
            service.send_signal(signal.SIGTERM)
            print(f"ended with {service.wait(60)}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    rows = [found[name] for name in loads]
    return int(any(row["wrong"] or row["errors"] for row in rows) or rows[0]["answers"] != EACH * given.tasks)


_COLUMNS = "answers wrong errors per-second p50-ms p99-ms hit-rate reads read-ms loads load-ms".split()

if __name__ == "__main__":
    sys.exit(main())
