"""Trains in several processes that share every batch: a program of its own, see test_parallel.py.

    sharing.py FOLDER      prints JSON: scene -> what each of its processes found

Processes are forked from here, where everything is imported but nothing has trained, and find each other through the
variables that torchrun would set.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from training import work  # noqa: E402

import inlay  # noqa: E402
from inlay.bank.bank import Bank  # noqa: E402
from inlay.errors import InlayError  # noqa: E402
from inlay.methods.diffprune import DiffPrune  # noqa: E402
from inlay.training import milestones, parallel, step  # noqa: E402
from inlay.training.adamw import AdamW  # noqa: E402
from inlay.training.parallel import Ranks, joined  # noqa: E402
from inlay.training.step import Step  # noqa: E402

TAGS = [work.run(work.entities(seed=3), "lora:rank=2", seed=3, batch_size=5, epochs=2)]
MANY = [
    work.run(work.texts(21, 1, 3), "houlsby:size=4", seed=1, batch_size=5, class_weights=True),
    work.run(work.entities(seed=2), "adapterbias:l0=0.001", seed=2, epochs=2, weight_decay=0.1),
    work.run(work.ratings(seed=4), "houlsby:size=6,mixout=0.3", seed=4, task="regression", batch_size=1, epochs=1),
    work.run(work.texts(seed=5), "finetune:top=1", lr=1e-3, seed=5, patience=1, clip=0.1, attention_dropout=True),
    work.run(work.pairs(20, seed=6), "diffprune:target=0.05", seed=6, pool="mean", batch_size=3, epochs=1),
    work.run(
        work.texts(seed=7), "bitfit", seed=7, pretrain_on_text=True, pretrain_epochs=1, epochs=1, head_dropout=0.4
    ),
    work.run(work.texts(18, seed=10), "houlsby:size=4", seed=10, batch_size=1, epochs=1, attention_dropout=True),
    work.run(work.topics(seed=8), "houlsby:size=4,layers=top1", seed=8, task="multilabel", batch_size=7, dropout=False),
    work.run(
        work.texts(20, 9),
        "houlsby:size=4",
        seed=9,
        few_shot=True,
        few_shot_steps=3,
        epochs=None,
        folds=2,
        val_size=None,
    ),
]
Told = dict[str, Any]
Scene = Callable[[Ranks, Path], Told]


def trained(runs: list[inlay.Run], ranks: Ranks, **how: Any) -> Told:
    """What is compared: losses, histories, metrics, and a hash of every adapter."""
    results = inlay.train(work.host(), runs, ranks=ranks, **how)
    return {
        "problems": [r.problem for r in results],
        "losses": [r.losses for r in results],
        "metrics": [r.metrics for r in results],
        "best": [r.best_step for r in results],
        "hashes": [hashlib.sha256(r.adapter.content()).hexdigest() if r.ok else "" for r in results],
        "versions": [r.version for r in results],
        "norms": [[t.float().norm().item() for t in r.adapter.tensors.values()] if r.ok else [] for r in results],
    }


def kept_apart(ranks: Ranks, folder: Path) -> Told:
    """The control: nobody exchanges gradients."""
    Ranks.adding = lambda self, tensors: lambda: None  # type: ignore[method-assign]
    return trained(TAGS, ranks)


def written(ranks: Ranks, folder: Path) -> Told:
    """Stopped in the middle by the leader's user, and resumed."""
    events: list[str] = []

    def stop(event: Told) -> None:
        events.append(event["event"])
        if event["event"] == "step" and events.count("step") == 7:
            raise KeyboardInterrupt

    how: Told = {"checkpoint": folder / "checkpoint", "library": inlay.Library(folder / "library")}
    try:
        trained(TAGS, ranks, callbacks=[stop], **how)
    except KeyboardInterrupt:
        stopped = True
    assert stopped
    found = trained(TAGS, ranks, resume=True, callbacks=[stop], **how)
    return {**found, "events": len(events), "left": (folder / "checkpoint").exists()}


def failing(ranks: Ranks, folder: Path) -> Told:
    """The second process fails; the first hears of it."""

    def backward(self: Step, *arguments: Any) -> Any:
        raise ValueError("this one fails")

    if ranks.rank == 1:
        Step.backward = backward  # type: ignore[method-assign]
    try:
        return trained(MANY[:2], ranks)
    except InlayError as error:
        return {"error": str(error)}


def short_of_memory(ranks: Ranks, folder: Path) -> Told:
    """The second process has no memory for two runs at once."""
    plain = Step.backward

    def backward(self: Step, plan: Any) -> Any:
        if ranks.rank == 1 and plan.runs > 1:
            raise torch.OutOfMemoryError("too much")
        return plain(self, plan)

    Step.backward = backward  # type: ignore[method-assign]
    slots: list[int] = []
    found = trained(MANY[:2], ranks, callbacks=[lambda e: slots.append(e["slots"]) if e["event"] == "slots" else None])
    return {**found, "slots": slots}


FEW = [MANY[0], MANY[1], MANY[4]]


def short_at(*places: tuple[Any, str, int]) -> Scene:
    """The second process is short of memory once at each of these places: (owner, function, call)."""

    def scene(ranks: Ranks, folder: Path) -> Told:
        hit: list[str] = []

        def short_once(owner: Any, name: str, at: int) -> None:
            plain, calls = getattr(owner, name), [0]

            def short(*arguments: Any, **more: Any) -> Any:
                calls[0] += 1
                if calls[0] == at:
                    hit.append(name)
                    raise torch.OutOfMemoryError("too much")
                return plain(*arguments, **more)

            setattr(owner, name, short)

        for owner, name, at in places if ranks.rank == 1 else ():
            short_once(owner, name, at)
        return {**trained(FEW, ranks), "hit": sorted(hit)}

    return scene


SCENES: dict[str, tuple[int, Scene]] = {
    "tags alone": (1, lambda ranks, _: trained(TAGS, ranks)),
    "tags in 2": (2, lambda ranks, _: trained(TAGS, ranks)),
    "tags in 3": (3, lambda ranks, _: trained(TAGS, ranks)),
    "many alone": (1, lambda ranks, _: trained(MANY, ranks)),
    "many in 2": (2, lambda ranks, _: trained(MANY, ranks)),
    "kept apart": (2, kept_apart),
    "written": (2, written),
    "failing": (2, failing),
    "short of memory": (2, short_of_memory),
}
SHORT: dict[str, tuple[int, Scene]] = {
    "few alone": (1, lambda ranks, _: trained(FEW, ranks)),
    "in a step": (2, short_at((AdamW, "prepare", 2))),
    "before the exchange": (2, short_at((Ranks, "adding", 3))),
    "where a batch is sent": (2, short_at((step, "on_device", 1))),
    "at begins and ends": (2, short_at((Bank, "load", 3), (milestones, "measured", 1), (DiffPrune, "finish", 1))),
    "in an evaluation": (2, short_at((parallel, "outputs_of", 1))),
}
"""Played only where they are named."""


def process(scene: Scene, folder: Path, rank: int, size: int, port: int) -> int:
    """A child that plays its part in a scene; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with joined() as ranks:
            told = scene(ranks, folder)
            (folder / f"{rank}.json").write_text(json.dumps(told))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def played(name: str, folder: Path) -> list[Told]:
    size, scene = {**SCENES, **SHORT}[name]
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for child in [process(scene, folder, rank, size, port) for rank in range(size)]:
        os.waitpid(child, 0)
    return [
        json.loads(file.read_text()) if file.exists() else {} for file in (folder / f"{r}.json" for r in range(size))
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: played(name, Path(sys.argv[1]) / name) for name in sys.argv[2:] or SCENES}))
