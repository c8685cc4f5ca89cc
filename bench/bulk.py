"""What bulk prediction costs outside the model: µs a row and stage, rows/s of the command, and 64 rows of 50 tasks.

    python bench/bulk.py                       # a tiny model with a real tokenizer: the host's own cost
    python bench/bulk.py --base sentence-transformers/all-MiniLM-L6-v2 --rows 2000 --weights plain prepack

Stages run one after the other in one thread, in parts and batches as on a GPU. What is measured is that thread's CPU
time, without the model's and without that of the tokenizer's own threads: the time in which a stage holds the
interpreter's lock, which all stages of the command share. The command runs as users run it, in a process of its own,
and says how many rows a second it had from the first row read to the last written.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import inlay
from inlay.bank.forward import Forward
from inlay.bench.host_cost import predict_costs, texts, tiny_base
from inlay.cli.named_adapters import find_in_library, host_with
from inlay.cli.predict_input import of_file
from inlay.cli.predict_job import PredictJob
from inlay.cli.resumable_output import open_parts
from inlay.engine.predict import TOKENS, decode, encode, run
from inlay.engine.translate import AnswerOptions
from inlay.library.library import Library
from inlay.training.gc_frozen import gc_frozen


def stages(root: Path, file: Path, library: Library, base: str | None) -> dict[str, float]:
    """µs a row of every stage, one after the other in one thread."""
    chosen = find_in_library(library, "a", ())
    entry = chosen["a"].entry
    assert entry is not None
    host = host_with(base, None, library, {"a": entry})
    asked = of_file(str(file), None, None, {}, chosen)
    asking = PredictJob(asked, chosen, 4096, False)
    store = open_parts(root / "stages.jsonl", asking.columns(), {})
    spent: Counter[str] = Counter()
    rows, parts = 0, asking.parts()

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        began = time.thread_time()
        yield
        spent[stage] += time.thread_time() - began

    real = Forward.call

    def model(self: Forward, *given: Any) -> Any:
        with timed("model"):
            return real(self, *given)

    for number in itertools.count():
        with timed("read"):
            part = next(parts, None)
        if part is None:
            break
        with timed("encode"):
            encoded = encode(host, asking.requests(part))
        with timed("run"), patch.object(Forward, "call", model):
            outputs = run(host, encoded)
        with timed("decode"):
            answers = decode(host, encoded, outputs, AnswerOptions())
        with timed("lay out"):
            lines = asking.lines(part, asking.every(part, answers), False)
        with timed("write"):
            store.write(number, lines)
        rows += len(part)
    store.remove()
    spent["run"] -= spent.pop("model")
    return {stage: total / rows * 1e6 for stage, total in spent.items()}


def command(root: Path, file: Path, library: Library, weights: str | None) -> tuple[float, float, float]:
    """Rows a second by the command's own count, and the whole command's seconds, on the clock and of the CPU."""
    out, flags = root / "out.jsonl", ["--weights", weights] if weights else []
    asked = ["predict", "a", "--file", file, "--text", "text", "--library", library.local, "--json"]
    asked += ["--out", out, "--overwrite"]
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    plain = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-m", "inlay", *map(str, asked), *flags], capture_output=True, text=True, check=True, env=plain
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
    return float(json.loads(done.stdout)["rows_per_second"]), time.perf_counter() - began, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=None, help="a tiny model by default")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--weights", nargs="*", default=[""], help="forms to run the command with; '' is its default")
    parser.add_argument("--turns", type=int, default=1, help="of the commands")
    parser.add_argument("--skip", nargs="*", default=[], choices=["tasks", "stages", "command"])
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = given.base or tiny_base(root / "base")
        file = root / "in.jsonl"
        with file.open("w") as lines:
            lines.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts(given.rows)))
        host, library = inlay.Host(base), Library(root / "library")
        host.add("a", "lora", labels=["bad", "fine", "good"])
        library.put(host.adapter("a"), base_name=base)
        if "tasks" not in given.skip:
            told = "; ".join(f"{c.stage} {c.calls:,} Python calls, {c.microseconds:.1f} µs" for c in predict_costs())
            print(f"64 rows of 50 tasks, a row outside the model: {told}", flush=True)
        if "stages" not in given.skip:
            with gc_frozen(), patch.dict(TOKENS, cpu=TOKENS["cuda"]):
                gc.set_threshold(200_000)  # as the command does
                found = stages(root, file, library, base)
            told = ", ".join(f"{stage} {cost:.1f}" for stage, cost in found.items())
            print(f"µs a row: {told}; all {sum(found.values()):.1f}", flush=True)
        if "command" not in given.skip:
            for _ in range(given.turns):
                for weights in given.weights:
                    rate, wall, used = command(root, file, library, weights or None)
                    told = f"{rate:,.0f} rows/s; in all {wall:.1f} s, {used:.1f} s of CPU time"
                    print(f"inlay predict, {weights or 'default'} weights: {told}", flush=True)


if __name__ == "__main__":
    main()
