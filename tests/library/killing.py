"""Uses a library in child processes and kills them with SIGKILL: a program of its own, see test_writers.py.

    killing.py random FOLDER KILLS SEED     kills at random moments, while a child puts, moves aliases, removes, cleans
    killing.py torn FOLDER KILLS SEED       the same, where files are written in place, slowly: the control
    killing.py steps FOLDER                 kills before every single call that changes the disk

Children are forked from here, where everything is imported. Prints JSON: what happened, and every fault that was found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import torch  # noqa: E402
from library.samples import adapter, at_step, value  # noqa: E402

from inlay.errors import InlayError  # noqa: E402
from inlay.library.library import Library  # noqa: E402
from inlay.library.storage import Folder  # noqa: E402

torch.set_num_threads(1)
adapter().content()  # methods are imported when they are asked for: not by every child


def fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# --- at random moments ------------------------------------------------------------------------------------------


def work(library: Library, first: int, say: Callable[[Any], None]) -> None:
    """Change a library for ever; every change is announced, and said again when it is done."""
    number, choose = first, random.Random(first)
    while True:
        name = choose.choice(["a", "b"])
        number += 1
        say(["put", name, number])
        say(["done", name, number, library.put(adapter(float(number)), name).version])
        if choose.random() < 0.3:
            version = choose.choice(library.versions(name))
            say(["alias", name, version])
            library.alias(name, "prod", version)
            say(["pointed", name, version])
        if choose.random() < 0.2:
            version = choose.choice(library.versions(name))
            if library.aliases(name).get("prod") != version:
                say(["remove", name, version])
                library.remove(f"{name}@{version}")
                library.restore(f"{name}@{version}")
                say(["restored", name, version])
        if choose.random() < 0.1:
            library.gc()


class Ledger:
    """What children said, held against what is in the library."""

    def __init__(self, library: Library):
        self.library = library
        self.done: dict[tuple[str, int], int] = {}
        self.begun: set[int] = set()
        self.touched: set[tuple[str, int]] = set()
        self.alias: dict[str, set[int]] = {}
        self.faults: list[str] = []

    def hear(self, said: list[Any]) -> None:
        what, name, number, *rest = said
        if what == "put":
            self.begun.add(number)
        elif what == "done":
            self.done[name, rest[0]] = number
        elif what == "alias":
            self.alias.setdefault(name, set()).add(number)
        elif what == "pointed":
            self.alias[name] = {number}
        elif what == "remove":
            self.touched.add((name, number))
        elif what == "restored":
            self.touched.discard((name, number))

    def check(self) -> None:
        """Nothing is lost, nothing is half there, and what was half done can be done again."""
        self.faults += [problem.message for problem in self.library.verify()]
        for entry in self.library.removed():  # killed between removing and restoring
            if (entry.name, entry.version) not in self.touched:
                self.faults.append(f"{entry.ref} is in the trash")
            self.library.restore(entry.ref)
        there = {(e.name, e.version): value(self.library, e.ref) for e in self.library.list(all_versions=True)}
        for key, number in self.done.items():
            if there.get(key) != number:
                self.faults.append(f"{key} should hold {number}, it holds {there.get(key)}")
        self.faults += [f"{key} holds {n}, which nobody put" for key, n in there.items() if n not in self.begun]
        for name, allowed in self.alias.items():
            found = self.library.aliases(name).get("prod")
            if found is not None and found not in allowed:
                self.faults.append(f"{name}@prod points to {found}, not to {allowed}")
        self.touched.clear()
        for name, version in there:
            if (name, version) not in self.done:
                self.done[name, version] = int(there[name, version])  # seen once, it must stay


def kill_at_random(folder: str, kills: int, seed: int) -> dict[str, Any]:
    library, moments = Library(folder), random.Random(seed)
    ledger = Ledger(library)
    count, inside = 0, 0
    for turn in range(kills):
        ours, theirs = os.pipe()

        def child(turn: int = turn, ours: int = ours, theirs: int = theirs) -> None:
            os.close(ours)
            say = lambda what: os.write(theirs, json.dumps(what).encode() + b"\n")  # noqa: E731
            work(Library(folder), 100_000 * (turn + 1), say)

        pid = fork(child)
        os.close(theirs)
        said = os.read(ours, 65536)  # it has begun
        time.sleep(moments.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        while more := os.read(ours, 65536):
            said += more
        os.close(ours)
        count += killed(os.waitpid(pid, 0)[1])
        lines = [json.loads(line) for line in said.split(b"\n")[:-1]]
        for line in lines:
            ledger.hear(line)
        inside += lines[-1][0] in ("put", "alias", "remove")
        try:
            ledger.check()
        except InlayError as error:
            ledger.faults.append(str(error))
            break
    told = {"kills": count, "inside": inside, "faults": ledger.faults}
    if not ledger.faults:
        told["parts"] = len(list(library.local.rglob(".part-*")))
        library.gc(grace=0.0)
        ledger.faults += [str(p) for p in library.local.rglob(".part-*")]
        ledger.check()
        told["versions"] = len(library.list(all_versions=True))
    return told


def tear() -> None:
    """Write files in place, slowly."""

    def replace(self: Folder, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with open(self.root / path, "wb", buffering=0) as file:
            for start in range(0, len(content), 200):
                file.write(content[start : start + 200])
                time.sleep(0.001)

    def create(self: Folder, path: str, content: bytes) -> bool:
        if (self.root / path).exists():
            return False
        replace(self, path, content)
        return True

    Folder.replace, Folder.create = replace, create  # type: ignore[method-assign]


# --- before every step ------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[Library], object]] = {
    "put": lambda library: library.put(adapter(3.0)),
    "put, a new name": lambda library: library.put(adapter(4.0), "fresh"),
    "alias": lambda library: library.alias("tone", "prod", 2),
    "remove": lambda library: library.remove("tone@1"),
    "restore": lambda library: library.restore("old@1"),
    "gc": lambda library: library.gc(grace=0.0),
}


def prepare(folder: str) -> Library:
    library = Library(folder)
    for number in (1.0, 2.0):
        library.put(adapter(number))
    for name in ("old", "older"):
        library.put(adapter(9.0), name)
        library.remove(name)
    return library


def kill_before_every_step(folder: str) -> dict[str, Any]:
    told: dict[str, Any] = {"faults": []}
    for action, act in ACTIONS.items():
        step, status = 0, signal.SIGKILL + 0
        while killed(status):
            step += 1
            library = prepare(f"{folder}/{action}-{step}")

            def child(step: int = step, act: Any = act, library: Library = library) -> None:
                with at_step(step, lambda _: os.kill(os.getpid(), signal.SIGKILL)):
                    act(library)

            _, status = os.waitpid(fork(child), 0)
            told["faults"] += [f"{action}, step {step}: {fault}" for fault in faults_after(library, action)]
        if status != 0:
            told["faults"].append(f"{action} failed by itself")
        told[action] = step - 1
    return told


def faults_after(library: Library, action: str) -> list[str]:
    """Whatever was killed: the rest is as it was, and the same again works."""
    found = [problem.message for problem in library.verify()]
    if action == "remove" and 1 not in library.versions("tone"):
        library.restore("tone@1")
    for ref, expected in (("tone@1", 1.0), ("tone@2", 2.0)):
        if value(library, ref) != expected:
            found.append(f"{ref} changed")
    if action == "restore" and library.removed()[0].name == "old":
        library.restore("old")
    if action != "gc":
        if not (library.removed() or library.versions("older")):
            found.append("the trash lost something")
        ACTIONS["put"](library)
        library.alias("tone", "prod", 2)
    library.gc(grace=0.0)
    found += [problem.message for problem in library.verify()]
    found += [str(p) for p in library.local.rglob("*") if p.name.startswith(".part-") or p.parent.name == "aside"]
    return found


if __name__ == "__main__":
    how, where, *rest = sys.argv[1:]
    if how == "torn":
        tear()
    result = kill_before_every_step(where) if how == "steps" else kill_at_random(where, *map(int, rest))
    print(json.dumps(result))
