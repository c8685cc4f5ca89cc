"""Where the time of a whole `inlay sweep` goes: 27 runs of houlsby on 384 rows of ACL-ARC, called twice.

    python bench/sweep_time.py DATA [--base NAME] [--option=--max-steps=20 ...]
    python bench/sweep_time.py DATA --protocol cola

DATA is a folder with `citation_intent` (train.txt, dev.txt, test.txt), or for `--protocol cola`, the 90 runs of
docs/results.md, the folder CoLA of GLUE. Every call is a process of its own with a library of its own; the first may
compile kernels and encode rows, the second finds both on disk. The process is the command itself, started by a driver
that puts a clock around the functions of each stage: a moment counts for the innermost stage it is in, and imports
count as imports wherever they happen. What the device still computes when a step returns counts where the host waits.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STAGES = {
    "base and tokenizer": ["inlay.base.load:load", "inlay.base.load:load_tokenizer"],
    "prepare: read, split, encode, describe": ["inlay.sweeps.api:SweepRunner.prepare"],
    "begin runs": ["inlay.training.loop:Loop._begin", "inlay.training.loop:Loop.__init__"],
    "recordings of steps and evaluations": ["inlay.engine.graphs:Graphs._capture"],
    "training steps": ["inlay.training.loop:Loop._step", "inlay.training.loop:Loop.settle"],
    "evaluations: model": ["inlay.training.milestones:Milestones._outputs"],
    "evaluations: scores and best states": ["inlay.training.milestones:Milestones._evaluate"],
    "ends: model": ["inlay.training.milestones:last_outputs_of"],
    "ends: scores": ["inlay.training.milestones:Milestones._finish"],
    "ends: adapters written": ["inlay.training.checkpoint:Checkpoint.keep"],
    "checkpoints": ["inlay.training.loop:Loop.save"],
    "rows of the store": ["inlay.sweeps.store:Store.set", "inlay.sweeps.store:Store.add"],
    "adapters worth keeping": ["inlay.sweeps.local:Local._keep", "inlay.training.checkpoint:Checkpoint.remove"],
    "winner to the library": ["inlay.sweeps.api:SweepRunner.put"],
    "table": [
        "inlay.cli.sweep_display:show_ranking",
        "inlay.cli.many_runs:ManyRuns.finish",
        "inlay.sweeps.api:SweepRunner.result",
    ],
    "screen": ["inlay.cli.train_display:Progress.__call__"],
}
"""Stage -> the functions whose time it is, less that of stages inside."""
IMPORTS, REST, EXIT = "imports", "everything else", "start and exit of the interpreter"
PROTOCOLS = {
    "acl-arc": (
        "{data}/citation_intent/train.txt --val {data}/citation_intent/dev.txt --test {data}/citation_intent/test.txt "
        "--format jsonl --train-size 384 --method houlsby --grid lr=1e-4,3e-4,1e-3 --grid size=8,64,256 --seeds 3 "
        "--epochs 10 --batch-size 32 --max-length 256"
    ),
    "cola": (
        "{data} --method houlsby --grid lr=3e-5,3e-4,3e-3 --grid epochs=3,20 --grid size=8,64,256 --seeds 5 "
        "--batch-size 32 --slots 90"
    ),
}


class Clock:
    """Seconds and calls by stage; only the innermost one runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._stages = [REST]
        self._since = time.perf_counter()
        self._waiting = {where: stage for stage, places in STAGES.items() for where in places}

    def _switch(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stages[-1]] = self.seconds.get(self._stages[-1], 0.0) + now - self._since
        self._since = now

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self.calls[stage] = self.calls.get(stage, 0) + 1
            self._stages.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._stages.pop()

        return timed

    def importing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that imports; the stages of a module are wrapped as soon as it is there."""
        counted = self.around(IMPORTS, function)

        def timed(name: str, *args: Any, **kwargs: Any) -> Any:
            if self._stages[-1] == IMPORTS or name in sys.modules:
                return function(name, *args, **kwargs)
            try:
                return counted(name, *args, **kwargs)
            finally:
                for where in [w for w in self._waiting if _is_there(w.partition(":")[0])]:
                    self._wrap(where, self._waiting.pop(where))

        return timed

    def _wrap(self, where: str, stage: str) -> None:
        module, _, path = where.partition(":")
        *outer, name = path.split(".")
        place = functools.reduce(getattr, outer, importlib.import_module(module))
        made = self.around(stage, getattr(place, name))
        if not outer:  # those who imported it by name have it too
            for other in [m for n, m in sys.modules.items() if n.startswith("inlay.")]:
                if getattr(other, name, None) is getattr(place, name):
                    setattr(other, name, made)
        setattr(place, name, made)

    def told(self) -> dict[str, Any]:
        """What there is so far."""
        self._switch()
        return {"seconds": self.seconds, "calls": self.calls, "ended": time.time()}


def _is_there(module: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and not getattr(found.__spec__, "_initializing", False)


def drive(report: Path, arguments: Sequence[str]) -> None:
    """The command in this process, with a clock; what it says goes to a file."""
    clock = Clock()
    builtins.__import__ = clock.importing(builtins.__import__)
    importlib.import_module = clock.importing(importlib.import_module)
    sys.argv = ["inlay", *arguments]
    try:
        from inlay.cli.main import main as inlay

        inlay()
    finally:
        report.write_text(json.dumps(clock.told()))


def measured(arguments: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """The whole command's wall time, and the driver's report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--drive", str(report), *arguments, "--library", f"{folder}/library"]
        began = time.time()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ended = time.time()
        if done.returncode:
            sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout}")
        found = json.loads(report.read_text())
    counted = sum(found["seconds"].values())
    found["seconds"][EXIT] = ended - began - counted
    found["after"] = ended - found["ended"]
    return ended - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="acl-arc")
    parser.add_argument("--base", help="another base than the default one")
    parser.add_argument("--option", action="append", default=[], help="more for the sweep, as --option=--max-steps=20")
    parser.add_argument("--calls", type=int, default=2)
    given = parser.parse_args()
    arguments = ["sweep", *PROTOCOLS[given.protocol].format(data=given.data).split(), "--name", "timed", "--best"]
    arguments += [*(["--base", given.base] if given.base else []), *given.option]
    print(f"inlay {' '.join(arguments)}\n{os.cpu_count()} cores")
    calls = []
    for _ in range(given.calls):
        with tempfile.TemporaryDirectory() as folder:
            calls.append(measured([*arguments, "--csv", f"{folder}/table.csv"]))
    print(f"{'seconds of each call, and how often':40}" + "".join(f"{f'call {i + 1}':>10}" for i in range(len(calls))))
    for stage in [EXIT, IMPORTS, *STAGES, REST]:
        if any(stage in found["seconds"] for _, found in calls):
            row = "".join(f"{found['seconds'].get(stage, 0.0):10.2f}" for _, found in calls)
            print(f"{stage:40}{row}   {calls[-1][1]['calls'].get(stage, '')}")
    print(f"{'the whole command':40}" + "".join(f"{whole:10.2f}" for whole, _ in calls))
    print(f"{'of it after the command had ended':40}" + "".join(f"{found['after']:10.2f}" for _, found in calls))
    apart = [whole - sum(found["seconds"].get(s, 0.0) for s in (IMPORTS, "training steps")) for whole, found in calls]
    print(f"{'outside imports and training steps':40}" + "".join(f"{one:10.2f}" for one in apart))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
