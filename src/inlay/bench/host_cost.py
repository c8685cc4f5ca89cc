"""What the host costs, stage by stage: everything of a batch and of a step that is not the model's own forward pass.

The base costs next to nothing (a tiny model with random weights) and has a real tokenizer. Times are CPU time of one
thread, so that a busy machine does not show.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

from inlay.bank.forward import Forward
from inlay.bank.records import pack, shape_of
from inlay.base.load import load_tokenizer
from inlay.base.places import DEFAULT, locate
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.host import Host
from inlay.engine.predict import Request, batch_of, decode, encode, run
from inlay.engine.run import plan_with_heads
from inlay.tasks import Row, parse
from inlay.training.adamw import AdamW, Settings
from inlay.training.gc_frozen import gc_frozen
from inlay.training.step import RunStep, Step

WORDS = "the parcel that I ordered on monday came late and the box was broken so please refund my money as soon".split()
WORDS += "possible since nobody answers letters calls about delivery of second order thanks in advance kind".split()
_METHOD = "lora"


@dataclass(frozen=True)
class Cost:
    """The cost of one stage."""

    stage: str
    microseconds: float
    """For each row, or for each run."""
    calls: int
    """Calls of Python functions for the whole batch."""


def predict_costs(rows: int = 64, tasks: int = 50, times: int = 200) -> list[Cost]:
    """The cost per row of answering this many rows of this many tasks; `all` is `Host.predict`."""
    host = _host(tasks)
    requests: list[Request] = [(f"t{i % tasks}", text) for i, text in enumerate(texts(rows, 4, 12))]
    encoded = encode(host, requests)
    outputs = run(host, encoded)
    flat, names = [windows[0] for windows in encoded.rows], [translator.name for translator in encoded.translators]
    batch = batch_of(flat)
    stages: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(host, requests),
        "batch": lambda: batch_of(flat),
        "plan": lambda: plan_with_heads(host, batch, names, None),
        "batch, plan, heads, rows": lambda: run(host, encoded),
        "decode": lambda: decode(host, encoded, outputs, AnswerOptions()),
        "all": lambda: host.predict(requests),
    }
    return _costs(stages, rows, times)


def step_costs(runs: int = 64, rows: int = 32, times: int = 50) -> list[Cost]:
    """The cost per run of what precedes a training step of this many runs on the device."""
    host = _host(runs)
    host.forward.kernels = True  # planned as for CUDA, and not run
    draw = random.Random(0)
    task = parse("classification")

    def drawn() -> Row:
        length = max(5, min(128, int(draw.lognormvariate(3.3, 0.5))))
        ids = array("i", [draw.randrange(999, 20_000) for _ in range(length)])
        return Row(memoryview(ids), None, draw.randrange(2))

    steps = [RunStep(f"t{i}", task, [drawn() for _ in range(rows)], Settings(1, 1e-3), (i, 0)) for i in range(runs)]
    flat = [row for run_step in steps for row in run_step.rows]
    step, batch = Step(host, AdamW(host.forward)), batch_of(flat)
    plan = step.plan(steps, batch)
    stages: dict[str, Callable[[], object]] = {
        "batch": lambda: batch_of(flat),
        "plan": lambda: step.plan(steps, batch),
        "shape": lambda: shape_of(plan),
        "pack": lambda: pack(plan),
    }
    return _costs(stages, runs, times)


def texts(count: int, least: int = 20, most: int = 65, seed: int = 0) -> list[str]:
    """Texts of `least` to `most` words each; about 45 tokens on average by default."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(least, most))) for _ in range(count)]


def tiny_base(folder: Path) -> str:
    """A model that costs next to nothing, with the default base's own tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(locate(DEFAULT)[0])
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(tokenizer), **size)
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _host(tasks: int) -> Host:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(tiny_base(Path(folder)), device="cpu")
        load_tokenizer(host.base)
    for i in range(tasks):
        host.add(f"t{i}", _METHOD, labels=[f"l{j}" for j in range(2 + i % 4)], seed=i)
    return host


def _costs(stages: dict[str, Callable[[], object]], units: int, times: int) -> list[Cost]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # the tokenizer's threads would not count; the collector is left alone as in the commands
        with patch.dict(os.environ, TOKENIZERS_PARALLELISM="false"), gc_frozen():
            for work in stages.values():
                work()
            return [Cost(n, seconds(w, times) / units * 1e6, python_calls(w)) for n, w in stages.items()]
    finally:
        torch.set_num_threads(threads)


def python_calls(work: Callable[[], object]) -> int:
    """How many Python functions `work` enters, without those within `Forward.call`."""
    inside, count = 0, 0
    model = Forward.call.__code__

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside, count
        if event == "call":
            inside += frame.f_code is model or inside > 0
            count += inside == 0
        elif event == "return" and inside:
            inside -= 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def seconds(work: Callable[[], object], times: int = 50) -> float:
    """The median CPU time of `work` in this thread, without `Forward.call`; run it on one thread of torch's."""
    real, model, results = Forward.call, 0.0, []

    def timed(self: Forward, *arguments: Any) -> Any:
        nonlocal model
        began = time.thread_time()
        out = real(self, *arguments)
        model += time.thread_time() - began
        return out

    with patch.object(Forward, "call", timed):
        for _ in range(times):
            model, began = 0.0, time.thread_time()
            work()
            results.append(time.thread_time() - began - model)
    return sorted(results)[times // 2]
