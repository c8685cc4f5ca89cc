"""The three kinds of work: steps of training, batches of one task, batches of many.

All parties start from token ids. Peers are timed from padded batches on the device; ours from the rows, packing
included. Before anything is timed, all get the same adapter weights, and their hidden states are compared.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from inlay.bank.delta import parse
from inlay.base.sites import config_of
from inlay.bench.base import folder_of, host_on, tokenizer_for
from inlay.bench.measure import BARE, OURS, Party, interleave, ratios, summary
from inlay.bench.peers import Peer, PeerError, Worker, method_for, not_given
from inlay.bench.rows import POOL, draw_lengths, draw_rows, lengths_of
from inlay.bench.stepper import Stepper, jobs_for
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.predict import row_limit
from inlay.errors import RunError
from inlay.version import __version__

BARE_METHOD = "adapterbias:alpha=false,layers=0"
"""The least that makes a gradient flow through every layer: one vector and one norm in the first."""
Work = Literal["train", "serve", "mixed"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    work: Work
    method: str = "lora"
    rows: int = 32
    runs: int = 1
    tasks: int = 1
    loaded: int = 1
    shape: str = "minilm"
    base: str | None = None
    lengths: str = "glue"
    data: str | None = None
    text: str | None = None
    repeats: int = 7
    steps: int = 10
    warmup: int = 5
    seed: int = 0
    device: str = ""
    threads: int = 0
    weights: str | None = None
    peer_settings: str = "best"

    def settled(self) -> Settings:
        """The same with a device, a number of threads, and no more tasks than are loaded or have a row."""
        for name in ("rows", "runs", "tasks", "loaded", "repeats", "steps", "warmup"):
            if getattr(self, name) < 1:
                raise RunError(f"{name}={getattr(self, name)} is not valid: expected at least 1")
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = self.loaded if self.work == "mixed" else 1
        tasks = min(self.tasks, loaded, self.rows)
        threads = self.threads or torch.get_num_threads()
        return replace(self, device=device, threads=threads, tasks=tasks, loaded=loaded)


def compare(settings: Settings, peers: Sequence[Peer] = (), say: Say = lambda line: None) -> dict[str, Any]:
    """Measure, and return all results as one document."""
    settings = settings.settled()
    parse(settings.method)
    notes = not_given(peers)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inlay-bench-")))
        stack.enter_context(_threads(settings.threads))
        scene = _Scene(settings, scratch, stack)
        parties = scene.ours()
        for peer in peers:
            say(f"{peer.name}: setting up")
            try:
                parties.insert(-1, scene.peer(peer))
            except PeerError as error:
                parties.insert(-1, Party(peer.name, lambda: 0.0, problem=str(error)))
        say("measuring")
        interleave(parties, settings.repeats)
        summaries = {party.name: summary(party) for party in parties}
    for party in parties:
        done = f"stopped after {len(party.times)} of {settings.repeats} blocks" if party.times else "is left out"
        notes += [f"{party.name} {done}: it {party.problem}"] * bool(party.problem)
    return {
        "settings": asdict(settings),
        "machine": machine(settings),
        "tokens_per_row": scene.mean_length,
        "parties": summaries,
        "ratios": ratios(summaries),
        "notes": notes,
    }


def machine(settings: Settings) -> dict[str, Any]:
    """Where and with what this was measured."""
    import transformers

    cuda = settings.device == "cuda"
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if cuda else _processor(),
        "cores": os.cpu_count(),
        "threads": settings.threads,
        "load": os.getloadavg()[0],
        "versions": {
            "inlay": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


class _Scene:
    """One base, its rows, and the parties that work on them."""

    def __init__(self, settings: Settings, scratch: Path, stack: ExitStack):
        self.settings, self.scratch, self.stack = settings, scratch, stack
        self.folder = folder_of(settings.shape, settings.base, scratch)
        self.host = host_on(self.folder, settings.device, settings.weights)
        self.rows = self._draw()
        self.mean_length = sum(map(len, self.rows)) / len(self.rows)
        per_task = [f"t{j * settings.loaded // settings.tasks}" for j in range(settings.tasks)]
        self.names = [per_task[i * settings.tasks // settings.rows] for i in range(settings.rows)]
        self._write("rows.json", self.rows)
        self._write("first.json", self.rows[: settings.rows])

    def ours(self) -> list[Party]:
        """Ours, and the bare base as the measure of what is possible."""
        s = self.settings
        for i in range(s.loaded):
            self.host.add(f"t{i}", s.method, labels=2, pool="cls", seed=i)
        self.states = self._reference()
        if s.work == "train":
            self.host.unload("t0")
            another = host_on(self.folder, s.device)
            return [self._trained(OURS, self.host, s.method), self._trained(BARE, another, BARE_METHOD)]
        batches = [Batch.of(chunk) for chunk in _cut(self.rows, s.rows)]
        none = [None] * s.rows
        ours: Callable[..., object] = self.host.logits if s.work == "serve" else self.host.hidden
        return [
            Party(
                OURS, self._blocks(batches, lambda b: ours(b, self.names)), about={"dtype": str(self.host.base.dtype)}
            ),
            Party(BARE, self._blocks(batches, lambda b: self.host.hidden(b, none))),
        ]

    def peer(self, peer: Peer) -> Party:
        """Start a peer, give it our weights, compare, and make it ready to be timed."""
        s = self.settings
        method = method_for(peer.name, parse(s.method))
        worker = Worker(peer)
        self.stack.callback(worker.close)
        ask = {name: getattr(s, name) for name in ("work", "rows", "loaded", "device", "threads", "steps", "warmup")}
        files = {"folder": self.folder, "rows_file": str(self.scratch / "rows.json"), "names": self.names}
        about = worker.ask(op="setup", method=method, settings=s.peer_settings, **ask, **files)
        about["difference"] = self._difference(worker)
        return Party(peer.name, lambda: float(worker.ask(op="run")["ms"]), s.runs, about)

    def _draw(self) -> list[list[int]]:
        s = self.settings
        count = s.rows * s.steps * (1 if s.work == "mixed" else -(-POOL // s.steps))
        if s.data is not None:
            lengths = lengths_of(s.data, s.text, tokenizer_for(self.folder), count, s.seed)
        else:
            lengths = draw_lengths(s.lengths, count, s.seed)
        vocabulary = int(config_of(self.host.base.model).vocab_size)
        return draw_rows(lengths, vocabulary, s.seed, row_limit(self.host, None))

    def _reference(self) -> list[Tensor]:
        """Our hidden states for the first batch with weights that matter, which are written out for the peers."""
        from safetensors.torch import save_file

        random = torch.Generator().manual_seed(1)
        stored: dict[str, Tensor] = {}
        for name in dict.fromkeys(self.names):
            moved = {}
            for key, value in self.host.read(name).items():
                if key.endswith((".down", ".up", ".down_bias", ".up_bias")):
                    moved[key] = torch.randn(value.shape, generator=random) * 0.02
            self.host.write(name, moved)
            stored |= {f"{name}/{key}": value.contiguous() for key, value in moved.items()}
        save_file(stored, self.scratch / "tensors.safetensors")
        with torch.inference_mode():
            states = self.host.hidden(Batch.of(self.rows[: self.settings.rows]), self.names).rows()
        return [state.float().cpu() for state in states]

    def _difference(self, worker: Worker) -> float:
        """The largest difference between their hidden states and ours, or PeerError if it is not rounding."""
        from safetensors.torch import load_file

        files = {"tensors": "tensors.safetensors", "rows_file": "first.json", "out": f"{worker.name}.safetensors"}
        paths = {key: str(self.scratch / name) for key, name in files.items()}
        worker.ask(op="outputs", **paths)
        theirs = load_file(paths["out"])
        ours = torch.cat(self.states)
        worst = (torch.cat([theirs[str(i)] for i in range(len(self.states))]) - ours).abs().max().item()
        size = max(1.0, ours.abs().max().item())
        exact = self.host.base.dtype == torch.float32 and self.settings.weights in (None, "prepack")
        allowed = (1e-4 if exact else 0.1) * size
        if not worst <= allowed:
            raise PeerError(f"gives other hidden states: they differ by {worst:.2g}, and {allowed:.2g} is allowed")
        return worst

    def _trained(self, name: str, host: Host, method: str) -> Party:
        s = self.settings
        steps = s.warmup + (s.repeats + 2) * s.steps
        jobs = jobs_for(method, self.rows, s.runs, s.rows, steps)
        stepper = Stepper(host, jobs, s.steps, s.warmup, self._wait)
        self.stack.callback(stepper.close)
        trained = sum(p.numel for p in parse(method).params(host.base.sites).values() if not p.is_fixed)
        return Party(name, stepper.block, about={"method": method, "dtype": str(host.base.dtype), "trainable": trained})

    def _blocks(self, batches: Sequence[Batch], run_batch: Callable[[Batch], object]) -> Callable[[], float]:
        """A block: `steps` batches, spread over all of them."""
        steps, turn = self.settings.steps, 0
        stride = max(1, len(batches) // steps)

        def run() -> float:
            nonlocal turn
            chosen = [batches[(turn % stride + i * stride) % len(batches)] for i in range(steps)]
            turn += 1
            self._wait()
            began = time.perf_counter()
            with torch.inference_mode():
                for batch in chosen:
                    run_batch(batch)
            self._wait()
            return 1000 * (time.perf_counter() - began) / steps

        for _ in range(-(-self.settings.warmup // steps)):
            run()
        return run

    def _wait(self) -> None:
        if self.settings.device == "cuda":
            torch.cuda.synchronize()

    def _write(self, name: str, value: object) -> None:
        (self.scratch / name).write_text(json.dumps(value))


def _cut(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _processor() -> str:
    """The name of the CPU."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
