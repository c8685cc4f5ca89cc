"""Load on a service of many tasks, and the same load on a plain FastAPI + peft service, in one run.

    python bench/load --tasks 50 --clients 64 --seconds 60 --changes 200

LoRA adapters with random weights on the default base, texts of GLUE's lengths. Every answer is compared with
`Host.predict`. While the clients ask, tasks are added, replaced and removed; an answer may then be that of the old
version or of the new one, and nothing else. CPU time is the server process's own, in all its threads, and is compared
with the host's when it answers the same questions in batches of 64, without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for all parties: threads that spin would take the clients' time

import torch
from clients import Load, run
from safetensors.torch import save_file
from service import same, start, texts

import inlay
from inlay.base.load import Base, load
from inlay.base.places import locate
from inlay.interop import peft
from inlay.interop.exchange import without_head

HERE = Path(__file__).parent
METHOD = "lora:rank=8"


def adapter(host: inlay.Host, name: str, seed: int, labels: int) -> inlay.Adapter:
    """A LoRA adapter whose weights matter."""
    host.add("made", METHOD, labels=[f"{name}-{i}" for i in range(labels)], pool="mean", seed=seed)
    random_ = torch.Generator().manual_seed(seed)
    own = {
        key: torch.randn(t.shape, generator=random_) * 0.1 for key, t in host.read("made").items() if "scale" not in key
    }
    host.write("made", own)
    made = replace(host.adapter("made"), name=name)
    host.unload("made")
    return made


class Scene:
    """Tasks in a library, and what every answer should be."""

    def __init__(self, folder: Path, given: argparse.Namespace):
        self.folder, self.library, self.tolerance = folder, inlay.Library(folder / "library"), given.tolerance
        tasks, questions = given.tasks, given.questions
        self.host = inlay.Host(given.base, weights=given.weights)
        self.names = [f"task{i}" for i in range(tasks)]
        self.labels = {name: 2 + i % 4 for i, name in enumerate(self.names)}
        self.versions: dict[str, list[inlay.Adapter]] = {}
        self.answers: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.texts = texts(questions)
        for i, name in enumerate(self.names):
            self.add(name, i)

    def add(self, name: str, seed: int) -> int:
        """Another version of a task; its answers are known from then on."""
        made = adapter(self.host, name, seed, self.labels[name])
        self.host.load(made, "asked")
        for text, answer in zip(self.texts, self.host.predict([("asked", t) for t in self.texts]), strict=True):
            self.answers.setdefault((name, text), []).append(dict(answer))
        self.host.unload("asked")
        self.versions.setdefault(name, []).append(made)
        return int(self.library.put(made).version)

    def judge(self, task: str, text: str, found: dict[str, Any]) -> str:
        """What is wrong with an answer."""
        if "error" in found:
            return "" if "withdrawn" in str(found) or task in self.changing else f"{task}: {found['error']}"
        known = self.answers[task, text]
        if any(same(found, one, self.tolerance) for one in known):
            return ""
        return f"{task}: {found.get('label')} {found.get('score')}, offline {[(k['label'], k['score']) for k in known]}"

    changing: frozenset[str] = frozenset()
    """Tasks that are being removed and added again, so that there may be none for a moment."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> int:
    """A call of the service's management."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class Changes(threading.Thread):
    """Adds, replaces and removes tasks, evenly over the time of the load."""

    def __init__(self, scene: Scene, port: int, count: int, seconds: float, versions: dict[str, list[int]]):
        super().__init__(daemon=True)
        self.scene, self.port, self.count, self.seconds, self.versions = scene, port, count, seconds, versions
        self.done = {"replaced": 0, "removed": 0, "added": 0}
        self.refused: list[str] = []

    def run(self) -> None:
        draw, end = random.Random(1), time.monotonic() + 0.95 * self.seconds
        flickering = sorted(self.scene.changing)
        gone: set[str] = set()
        for i in range(self.count):
            name = draw.choice(flickering if i % 2 else list(self.versions))
            if name in gone:
                status, what = ask(self.port, "PUT", f"/v1/tasks/{name}", {}), "added"
                gone.discard(name)
            elif i % 2:
                status, what = ask(self.port, "DELETE", f"/v1/tasks/{name}"), "removed"
                gone.add(name)
            else:
                ref = f"{name}@{draw.choice(self.versions[name])}"
                status, what = ask(self.port, "PUT", f"/v1/tasks/{name}", {"ref": ref}), "replaced"
                gone.discard(name)
            self.done[what] += 1
            if status not in (200, 204):
                self.refused.append(f"{what} {name}: {status}")
            time.sleep(max(0.0, (end - time.monotonic()) / max(1, self.count - i)))


def offline(scene: Scene, asks: list[tuple[str, str]]) -> float:
    """CPU seconds of an answer without a server: batches of 64, from texts to answers."""
    for name in scene.names:
        scene.host.load(scene.versions[name][0], name)
    for rows in (asks[:64], asks):  # once to warm up
        began, count = time.process_time(), 0
        for i in range(0, len(rows), 64):
            count += len(scene.host.predict(rows[i : i + 64]))
        found = (time.process_time() - began) / count
    for name in scene.names:
        scene.host.unload(name)
    return found


def for_peft(scene: Scene, base: Base) -> Path:
    """The same adapters as the peft service reads them."""
    folder = scene.folder / "peft"
    folder.mkdir()
    (folder / "base.txt").write_text(str(locate(base.name)[0]))
    (folder / "tasks.json").write_text(json.dumps({name: list(scene.versions[name][0].labels) for name in scene.names}))
    for name in scene.names:
        made = scene.versions[name][0]
        peft.write(without_head(made), base, folder / name)
        head = {key.removeprefix("head."): t.contiguous() for key, t in made.tensors.items() if key.startswith("head.")}
        save_file(head, folder / name / "head.safetensors")
    return folder


def measured(
    process: subprocess.Popen[bytes], port: int, asks: list[tuple[str, str]], given: Any, judge: Any
) -> tuple[Load, float]:
    """The load, and the server's CPU seconds for an answer."""
    asyncio.run(run(port, asks, given.clients, min(3.0, given.seconds), lambda *_: ""))
    before = cpu_seconds(process.pid)
    load = asyncio.run(run(port, asks, given.clients, given.seconds, judge))
    return load, (cpu_seconds(process.pid) - before) / max(1, len(load.seconds))


def said(name: str, load: Load, cpu: float) -> dict[str, Any]:
    row = {
        "answers": len(load.seconds),
        "per_second": load.rate,
        "p50_ms": 1000 * load.percentile(0.5),
        "p99_ms": 1000 * load.percentile(0.99),
        "cpu_ms": 1000 * cpu,
        "errors": len(load.errors),
        "wrong": len(load.wrong),
    }
    print(
        f"{name:28}" + "".join(f"{row[key]:12.1f}" if isinstance(row[key], float) else f"{row[key]:12}" for key in row),
        flush=True,
    )
    for problem in [*load.errors[:3], *load.wrong[:3]]:
        print(f"    {problem[:200]}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--questions", type=int, default=100, help="texts that every task is asked")
    parser.add_argument("--base", help="a folder or a hub name, in place of the default base")
    parser.add_argument(
        "--weights",
        default="plain" if torch.cuda.is_available() else "prepack",
        help="prepack, plain ...; by default as `inlay serve` does",
    )
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of a score; in bf16 it depends on neighbours")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--peft-python", default=sys.executable)
    parser.add_argument("--without-peft", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        scene = Scene(folder, given)
        asks = [(name, text) for name in scene.names for text in scene.texts]
        random.Random(2).shuffle(asks)
        found: dict[str, Any] = {"settings": {k: v for k, v in vars(given).items() if k != "json"}}
        found["offline_cpu_ms"] = 1000 * offline(scene, asks[:1024])
        print(f"offline, batches of 64: {found['offline_cpu_ms']:.1f} ms of CPU time an answer")
        columns = ("answers", "per second", "p50 ms", "p99 ms", "CPU ms", "errors", "wrong")
        print(" " * 28 + "".join(f"{name:>12}" for name in columns))
        serve = [
            sys.executable,
            "-m",
            "inlay.cli.main",
            "serve",
            "--port",
            str(given.port),
            "--library",
            str(folder / "library"),
            "--weights",
            given.weights,
            "--open-management",
            *(() if given.base is None else ("--base", given.base)),
        ]
        ours = start(serve, given.port, folder / "ours.log")
        found["inlay"] = said("inlay", *measured(ours, given.port, asks, given, scene.judge))
        if given.changes:
            versions = {name: [1] for name in scene.names[: given.tasks // 2]}
            for i, name in enumerate(versions):
                versions[name].append(scene.add(name, 1000 + i))
            scene.changing = frozenset(scene.names[given.tasks // 2 : given.tasks // 2 + 8])
            changes = Changes(scene, given.port, given.changes, given.seconds, versions)
            changes.start()
            found["inlay, changing"] = said(
                "inlay, tasks changing", *measured(ours, given.port, asks, given, scene.judge)
            )
            changes.join()
            found["changes"] = {**changes.done, "refused": changes.refused}
            print(f"    {changes.done}, refused {changes.refused[:3]}")
        ours.send_signal(signal.SIGTERM)
        print(f"    ended with {ours.wait(60)}")
        if not given.without_peft:
            made = for_peft(scene, load(None, device="cpu"))
            command = [given.peft_python, str(HERE / "peft_service.py"), str(made), str(given.port + 1)]
            theirs = start(command, given.port + 1, folder / "theirs.log")
            found["peft"] = said("FastAPI + peft", *measured(theirs, given.port + 1, asks, given, scene.judge))
            theirs.kill()
            found["ratio"] = found["inlay"]["per_second"] / found["peft"]["per_second"]
            print(f"inlay answers {found['ratio']:.1f} times as many a second")
        found["cpu_ratio"] = found["inlay"]["cpu_ms"] / found["offline_cpu_ms"]
        print(f"the server's CPU time is {found['cpu_ratio']:.2f} times the offline one")
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
        return int(
            any(found[key]["wrong"] or found[key]["errors"] for key in ("inlay", "inlay, changing") if key in found)
        )


if __name__ == "__main__":
    sys.exit(main())
