"""Trains in child processes and kills them with SIGKILL: a program of its own, see test_faults.py.

    killing.py FOLDER KILLS SEED FILES      FILES: plain; slow, where every sync and rename takes a while; or torn,
                                            where the state is written in place, slowly: the control

Children are forked from here, where everything is imported but nothing has trained, so that they start at once.
Trainings are killed and resumed until they are done, and started anew until there were enough kills. Prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from training import work  # noqa: E402

import inlay  # noqa: E402
from inlay.runs.prepare import prepare  # noqa: E402
from inlay.training.checkpoint import Checkpoint  # noqa: E402

RUNS = [
    work.run(work.texts(seed=1), "houlsby:size=4", seed=1, epochs=4),
    work.run(work.texts(seed=2), "diffprune:target=0.05", seed=2, eval_every=3),
    work.run(work.entities(seed=3), "adapterbias:l0=0.001", seed=3, weight_decay=0.1),
    work.run(work.texts(seed=4), "houlsby:size=6,mixout=0.3", seed=4, pretrain_on_text=True, pretrain_epochs=1),
    work.run(work.ratings(seed=5), "finetune:top=1", seed=5, task="regression", epochs=5, patience=2),
    work.run(work.texts(seed=6), "houlsby:size=3", seed=6),
    work.run(
        work.texts(18, 7), "lora:rank=2", seed=7, few_shot=True, few_shot_steps=3, epochs=1, folds=2, val_size=None
    ),
]


def train(folder: Path) -> None:
    """The adapters, as files; a checkpoint after every step."""
    how: Any = {"slots": 3, "checkpoint": folder / "checkpoint", "resume": True, "save_every": 0}
    results = inlay.train(work.host(), RUNS, **how)
    for i, result in enumerate(results):
        result.adapter.save(folder / f"{i}.safetensors")
    (folder / "finished").touch()


def slow_files() -> None:
    """Most of a child's time passes inside the writing of files."""
    sync, rename = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        time.sleep(0.03)
        sync(handle)

    def replace(self: Path, target: Any) -> Path:
        time.sleep(0.03)
        return rename(self, target)

    os.fsync = fsync
    Path.replace = replace  # type: ignore[method-assign]


def torn_files() -> None:
    """What a checkpoint must not be."""

    def write(self: Checkpoint, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file.open("wb") as file:
            file.write(content[: len(content) // 2])
            file.flush()
            time.sleep(0.05)
            file.write(content[len(content) // 2 :])

    Checkpoint._write = write  # type: ignore[method-assign]


FILES = {"plain": lambda: None, "slow": slow_files, "torn": torn_files}


def start(folder: Path, files: str) -> int:
    """A child that trains; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        FILES[files]()
        train(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def killed(child: int, after: float, known: Path | None, written: Path | None) -> bool:
    """Kill a child after a while; False if it was done by then.

    Args:
        known: the while begins when this file exists.
        written: the child is killed when this file exists after that.
    """
    ended, status = _wait(child, known)
    if not ended:
        time.sleep(after)
        ended, status = _wait(child, written)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    ended_well(status)
    return False


def _wait(child: int, file: Path | None) -> tuple[int, int]:
    """Until a file exists, or the child has ended: what `waitpid` says."""
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and file is not None and not file.exists():
        time.sleep(0.001)
        ended, status = os.waitpid(child, os.WNOHANG)
    return ended, status


def ended_well(status: int) -> None:
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("a child failed")


def hashes(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / f"{i}.safetensors").read_bytes()).hexdigest() for i in range(len(RUNS))]


def main(folder: Path, kills: int, seed: int, files: str) -> dict[str, Any]:
    draw = random.Random(seed)
    for run in RUNS:
        prepare(run, work.host())  # imports what children would import
    (folder / "whole").mkdir(parents=True)
    began = time.monotonic()
    ended_well(os.waitpid(start(folder / "whole", "plain"), 0)[1])
    takes = time.monotonic() - began
    told: dict[str, Any] = {"expected": hashes(folder / "whole"), "found": [], "kills": 0, "resumes": 0, "in_writes": 0}
    while told["kills"] < kills:
        own = folder / f"{len(told['found'])}"
        own.mkdir()
        while not (own / "finished").exists():
            state = own / "checkpoint" / "state.safetensors"
            told["resumes"] += state.exists()
            child = start(own, files if told["kills"] < kills else "plain")
            known = state if told["kills"] % 2 else None  # else a slow machine kills before there is anything to resume
            written = state.with_name(f".state.{child}") if known and files == "slow" else None
            if told["kills"] == kills:
                ended_well(os.waitpid(child, 0)[1])
            elif killed(child, draw.uniform(0, 0.3 * takes), known, written):
                told["kills"] += 1
                told["in_writes"] += any((own / "checkpoint").glob(f".*.{child}"))
        told["found"].append(hashes(own))
        told["left"] = sorted(f.name for f in own.iterdir() if not f.name.endswith(".safetensors"))
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
