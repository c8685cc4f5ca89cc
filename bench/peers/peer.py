"""What the two workers share: the protocol, padded batches, and the search for the peer's fastest settings.

A worker is a process of its own, in the peer's environment: torch, transformers and the peer, nothing of Inlay. It
reads one JSON object per line from stdin and answers each with one line:

    {"op": "setup", "work": "train", ...}        -> {"versions": {...}, "settings": {...}, "tried": [...], ...}
    {"op": "outputs", "tensors": F, "out": F}    -> {"rows": 32}        hidden states with given weights, for comparing
    {"op": "run"}                                -> {"ms": 12.3}        per step or batch, a block of them measured
    anything that fails                          -> {"error": "..."}

What is generous to the peer: batches are padded and on the device before the clock starts, and nothing is read back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COMPILE_LIMIT = 300
"""Seconds that torch.compile may take before it counts as not working."""


class Worker(ABC):
    """One peer: how it makes a model, takes weights and routes rows."""

    name: str
    versions: dict[str, str]

    def __init__(self) -> None:
        self.model: Any = None
        self.call: Callable[..., Any] = lambda: None
        self.ask: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.batches: list[tuple[dict[str, Tensor], Tensor]] = []
        self.blocks: list[list[int]] = []
        self.turn = 0

    @abstractmethod
    def build(self, ask: dict[str, Any]) -> nn.Module:
        """The model of this work, with its adapters, on the CPU in fp32."""

    @abstractmethod
    def encoder(self) -> Callable[..., Any]:
        """The part of the model that gives hidden states."""

    @abstractmethod
    def write(self, adapter: str, site: str, layer: int, tensors: dict[str, Tensor]) -> None:
        """Give an adapter weights: down [d, r], up [r, d], and biases where there are any."""

    def route(self) -> dict[str, Any]:
        """What a call needs for the rows of a mixed batch, beside the batch."""
        return {}

    def setup(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Build, then keep the settings with which a block is fastest."""
        torch.set_num_threads(ask["threads"])
        torch._dynamo.reset()
        self.ask, self.turn = ask, 0
        with open(ask["rows_file"]) as file:
            rows = json.load(file)
        self.model = self.build(ask).to(ask["device"])
        trainable = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        wanted = choices(ask["settings"], ask["device"])
        order = (grouped if wanted["grouped"] and ask["work"] != "mixed" else as_they_come)(
            [len(row) for row in rows], ask["rows"]
        )
        self.batches = [pad([rows[i] for i in some], ask["device"], seed) for seed, some in enumerate(order)]
        self.blocks = deal([inputs["input_ids"].numel() for inputs, _ in self.batches], ask["steps"])
        tried = [self._try(p, c) for p in wanted["precision"] for c in wanted["compile"]]
        working = [one for one in tried if "ms" in one]
        if not working:
            raise RuntimeError(tried[0]["error"])
        best = min(working, key=lambda one: one["ms"])
        self._use(best["precision"], best["compile"])
        self._warm_up()
        real = sum(len(row) for row in rows)
        padded = sum(inputs["input_ids"].numel() for inputs, _ in self.batches)
        self.settings = {"grouped": wanted["grouped"] and ask["work"] != "mixed", **best}
        return {
            "versions": {"python": sys.version.split()[0], "torch": torch.__version__, **self.versions},
            "settings": self.settings,
            "tried": tried,
            **({"trainable": trainable} if ask["work"] == "train" else {}),
            "padding": 1 - real / padded,
        }

    def outputs(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Take weights from a file and write the hidden states of some rows to another."""
        from safetensors.torch import load_file, save_file

        parts: dict[tuple[str, str, int], dict[str, Tensor]] = {}
        for key, value in load_file(ask["tensors"]).items():
            adapter, _, layer, *site, name = key.replace("/", ".").split(".")  # t0/layers.3.attn.q.down
            parts.setdefault((adapter, ".".join(site), int(layer)), {})[name] = value
        for (adapter, site, layer), tensors in parts.items():
            self.write(adapter, site, layer, tensors)
        with open(ask["rows_file"]) as file:
            rows = json.load(file)
        inputs, _ = pad(rows, self.ask["device"], 0)
        was = self.model.training
        self.model.eval()
        with torch.inference_mode(), self._precision():
            states = self.encoder()(**inputs, **self.route()).last_hidden_state
        self.model.train(was)
        save_file({str(i): states[i, : len(row)].float().cpu().contiguous() for i, row in enumerate(rows)}, ask["out"])
        return {"rows": len(rows)}

    def run(self) -> dict[str, Any]:
        """Time the next block."""
        self.turn += 1
        return {"ms": self._time(self.blocks[self.turn % len(self.blocks)])}

    def _warm_up(self) -> None:
        """Some batches of all lengths."""
        stride = max(1, len(self.batches) // self.ask["warmup"])
        self._time([i * stride % len(self.batches) for i in range(self.ask["warmup"])])

    def _time(self, block: Sequence[int]) -> float:
        """Milliseconds of one of these batches."""
        self._synchronise()
        began = time.perf_counter()
        for i in block:
            self.step(*self.batches[i])
        self._synchronise()
        return 1000 * (time.perf_counter() - began) / len(block)

    def _try(self, precision: str, compiled: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"precision": precision, "compile": compiled}
        try:
            with limit(COMPILE_LIMIT if compiled else 0):
                self._use(precision, compiled)
                self._warm_up()
                if compiled:
                    self._time(self.blocks[0])  # shapes that were not among the first
                found["ms"] = min(self._time(self.blocks[0]) for _ in range(2))
        except Exception as error:  # whatever it is, the peer goes on without it, and the report says so
            found["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            torch._dynamo.reset()
        return found

    def _use(self, precision: str, compiled: bool) -> None:
        """Put the model into these settings."""
        training = self.ask["work"] == "train"
        half = precision == "bf16"
        for p in self.model.parameters():
            p.data = p.data.to(torch.bfloat16 if half and not (training and p.requires_grad) else torch.float32)
        self.autocast = precision == "autocast" or (half and training)
        self.model.train(training)
        self.call = torch.compile(self.model, dynamic=True) if compiled else self.model
        if training:
            params = [p for p in self.model.parameters() if p.requires_grad]
            optimiser = torch.optim.AdamW(params, lr=1e-4, fused=True)
            self.step = self._training_step(params, optimiser)
        else:
            self.step = self._inference_step()

    def _training_step(self, params: list[nn.Parameter], optimiser: Any) -> Callable[..., None]:
        def step(inputs: dict[str, Tensor], labels: Tensor) -> None:
            with self._precision():
                loss = F.cross_entropy(self.call(**inputs).logits.float(), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return step

    def _inference_step(self) -> Callable[..., None]:
        more = self.route()

        def step(inputs: dict[str, Tensor], labels: Tensor) -> None:
            with torch.inference_mode(), self._precision():
                self.call(**inputs, **more)

        return step

    def _precision(self) -> Any:
        return torch.autocast(self.ask["device"], dtype=torch.bfloat16) if self.autocast else nullcontext()

    def _synchronise(self) -> None:
        if self.ask["device"] == "cuda":
            torch.cuda.synchronize()


def choices(asked: str, device: str) -> dict[str, Any]:
    """What to try: `best` is everything, `plain` what a first script has, or names with commas between them."""
    half = ["autocast", "bf16"] if device == "cuda" else ["fp32"]
    if asked == "best":
        return {"grouped": True, "precision": half, "compile": [False, True]}
    if asked == "plain":
        return {"grouped": False, "precision": half[:1], "compile": [False]}
    names = asked.split(",")
    precision = [name for name in ("fp32", "autocast", "bf16") if name in names] or half
    return {"grouped": "grouped" in names, "precision": precision, "compile": [False] + [True] * ("compile" in names)}


def as_they_come(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Batches of consecutive rows."""
    return [list(range(i, i + rows)) for i in range(0, len(lengths) - rows + 1, rows)]


def grouped(lengths: Sequence[int], rows: int, megabatch: int = 50) -> list[list[int]]:
    """Batches of rows of like length: sorted within fifty batches at a time, as a length-grouped sampler does."""
    size = megabatch * rows
    order: list[int] = []
    for start in range(0, len(lengths), size):
        order += sorted(range(start, min(start + size, len(lengths))), key=lambda i: -lengths[i])
    return [[order[i] for i in some] for some in as_they_come(order, rows)]


def deal(sizes: Sequence[int], steps: int) -> list[list[int]]:
    """Blocks of so many batches and about as many tokens each: the largest goes to the emptiest that has room."""
    blocks: list[list[int]] = [[] for _ in range(max(1, len(sizes) // steps))]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        room = [block for block in blocks if len(block) < steps]
        if room:
            min(room, key=lambda block: sum(sizes[j] for j in block)).append(i)
    return blocks


def pad(rows: Sequence[Sequence[int]], device: str, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Rows padded to the longest (on CUDA to a multiple of eight), and labels."""
    longest = max(len(row) for row in rows)
    if device == "cuda":
        longest = -(-longest // 8) * 8
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    labels = torch.randint(0, 2, (len(rows),), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}, labels.to(device)


def module_at(model: nn.Module, end: str) -> Any:
    """The one module whose path ends like this."""
    found = [module for name, module in model.named_modules() if name == end or name.endswith("." + end)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} modules end with {end}, expected one")
    return found[0]


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Give up after so many seconds; 0 is no limit."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def serve(worker: Worker) -> None:
    """Answer line by line until stdin ends; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = worker.run() if ask["op"] == "run" else getattr(worker, ask["op"])(ask)
        except Exception as error:  # the other side decides what to do without this peer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
