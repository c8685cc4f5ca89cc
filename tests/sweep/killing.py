"""Sweeps in child processes that are killed with SIGKILL: a program of its own, see test_kill.py.

    killing.py FOLDER KILLS SEED KIND      KIND: grid, ensemble, search, or other (another seed: the control)

Children are forked from here, where everything is imported but nothing has trained. A sweep is killed so many times, at
random moments, and called again with the same file until it is done. Prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [str(Path(__file__).parents[1])]

import torch  # noqa: E402
from training import work  # noqa: E402

import inlay  # noqa: E402
from inlay.runs.prepare import prepare  # noqa: E402

CHECKPOINT = "s.sqlite.files/loop/state.safetensors"
GRID = {"method": "houlsby,adapterbias,lora:rank=2", "size": "4,8", "lr": "1e-3,1e-2", "epochs": "1,3"}
SPACE = {"method": "houlsby,adapterbias", "size": "2..8", "lr": "1e-4..1e-1"}


def sweep(folder: Path, kind: str) -> None:
    """A checkpoint after every few steps, and a line in a file for every run that begins."""

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "begin":
            with (folder / "begun").open("a") as file:
                file.write(f"{os.getpid()} {event['run']}\n")

    run = inlay.Run(
        data=work.texts(30), batch_size=4, val_size=9, epochs=3, eval_every=2, seed=7 if kind == "other" else 0
    )
    if kind == "search":
        given = run.model_copy()
        how: dict[str, Any] = {"search": "optuna", "trials": 9, "pruner": "median", "seeds": 2}
        inlay.sweep(
            work.host(), given, SPACE, slots=3, store=folder / "s.sqlite", save_every=0.2, callbacks=[hear], **how
        )
    else:
        plain = inlay.Run(**{k: v for k, v in run.model_dump(exclude_unset=True).items() if k != "epochs"})
        where: dict[str, Any] = {"store": folder / "s.sqlite", "save_every": 0.2, "callbacks": [hear]}
        many = 4 if kind == "ensemble" else None
        found = inlay.sweep(work.host(), plain, GRID, seeds=2, slots=4, ensemble=many, **where)
        if found.ensemble is not None:
            chosen = {key: value for key, value in found.ensemble.document().items() if key != "members"}
            chosen["members"] = [[row.id, count] for row, count in found.ensemble.members]
            (folder / "chosen").write_text(json.dumps(chosen))
    (folder / "finished").touch()


def start(folder: Path, kind: str) -> int:
    """A child at work; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        sweep(folder, kind)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def rows(folder: Path) -> list[Any]:
    """All that a run's row says but how long it took."""
    with sqlite3.connect(folder / "s.sqlite") as database:
        names = "id, label, state, value, metrics, history, replicates, tokens, parameters, error"
        found = sorted(map(list, database.execute(f"select {names} from runs")))
    return [*found, *([(folder / "chosen").read_text()] if (folder / "chosen").exists() else [])]


def ended(folder: Path) -> set[str]:
    if not (folder / "s.sqlite").exists():
        return set()
    with sqlite3.connect(folder / "s.sqlite") as database:
        there = database.execute("select count(*) from sqlite_master where name = 'runs'").fetchone()[0]
        found = database.execute("select label from runs where state in ('done', 'pruned', 'failed')") if there else ()
        return {label for (label,) in found}


def begun(folder: Path, child: int) -> set[str]:
    if not (folder / "begun").exists():
        return set()
    lines = [line.split(" ", 1) for line in (folder / "begun").read_text().splitlines()]
    return {label for process, label in lines if int(process) == child}


def wait(child: int) -> None:
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("a child failed")


def until_saved(folder: Path, child: int) -> None:
    """Until there is a checkpoint to resume from, which may take long on a busy machine, or the child has ended."""
    while not (folder / CHECKPOINT).exists():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.01)


def main(folder: Path, kills: int, seed: int, kind: str) -> dict[str, Any]:
    draw = random.Random(seed)
    prepare(work.run(), work.host())  # imports what children would import
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir(parents=True)
    killed.mkdir()
    began = time.monotonic()
    wait(start(whole, "grid" if kind == "other" else kind))
    takes = time.monotonic() - began
    told: dict[str, Any] = {"expected": rows(whole), "kills": 0, "resumed": 0, "repeated": [], "seen": []}
    while not (killed / "finished").exists():
        before = ended(killed)
        told["resumed"] += (killed / CHECKPOINT).exists()
        told["seen"].append(len(before))
        child = start(killed, kind)
        if told["kills"] < kills:
            time.sleep(draw.uniform(0.15, 0.9 / kills) * takes)
            if told["kills"] == kills - 1:
                until_saved(killed, child)
            os.kill(child, signal.SIGKILL)
            told["kills"] += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        else:
            wait(child)
        told["repeated"] += sorted(before & begun(killed, child))
    told["found"] = rows(killed)
    told["left"] = sorted(p.name for p in (killed / "s.sqlite.files").iterdir() if p.suffix != ".safetensors")
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
