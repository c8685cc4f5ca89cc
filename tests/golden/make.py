"""Makes the files that tests/golden/test_golden.py reads: once for a format.

    PYTHONPATH=src:tests:tests/training python tests/golden/make.py FOLDER

Files on disk are read for ever. A folder here was written by the code of its day and is never made again: where a
format changes, the script is run once more into a new folder, and both are read from then on.

    base/          a tiny BERT with its tokenizer
    adapters/      every method, with random values
    library/       versions, an alias, a removed version, an adapter in fp16, adapters of every task, an ensemble
    sweep.db       two runs that are done; sweep.db.files has their adapters
    checkpoint/    a training that was stopped: one run done, one on its way
    rows.csv       what sweep and training read
    expected.json  what all of these answered when they were made (fp32, CPU)
"""

from __future__ import annotations

import csv
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny
import torch
import work

import inlay
from inlay.runs.prepare import prepare
from inlay.training.checkpoint import Checkpoint
from inlay.training.job import Job
from inlay.training.loop import Loop

METHODS = (
    "houlsby",
    "houlsby:size=4,activation=relu,share=sublayers,depth=2,inner_norm=true",
    "houlsby:size=3,where=ffn,parallel=true,layers=top1,mixout=0.1,mixout_unit=element",
    "houlsby:size=4,normed=true",
    "adapterbias",
    "adapterbias:share=v,alpha=true",
    "adapterbias:alpha=false",
    "adapterbias:l0=0.01",
    "bitfit",
    "bitfit:sites=attn.q+ffn.in",
    "norms",
    "lora",
    "lora:rank=2,alpha=4,sites=attn.q+ffn.in",
    "finetune",
    "finetune:top=1",
    "diffprune",
    "diffprune:target=0.1,low=-0.5,high=1.5",
    "diffprune:structured=true,target=0.1",
    "frozen",
)
"""Where a method trains with gates, the adapter is kept once with them and once finished."""
GATED = tuple(spec for spec in METHODS if spec.startswith("diffprune") or "l0=" in spec)
TEXTS = ("a good film", "the soup was awful , never", "ana meets bob in lima", "where is my parcel ?")
SETTINGS = {
    "method": "lora:rank=2",
    "lr": 3e-3,
    "epochs": 2,
    "batch_size": 8,
    "val_size": 8,
    "max_steps": 6,
    "choose_by": "score",
}
"""Some of these are defaults of Run, and some methods of the runs too: what is not written must keep its meaning."""
TASKS: dict[str, tuple[Sequence[dict[str, Any]], dict[str, Any], Any]] = {
    "tone": (work.texts(16), {}, "a good film"),
    "same": (work.pairs(16), {"text": "a", "pair": "b"}, ("a good film", "it was bad")),
    "stars": (work.ratings(16), {"task": "regression"}, "good good film"),
    "topics": (work.topics(16), {"task": "multilabel"}, "the soup , the film"),
    "names": (work.entities(16), {"task": "tagging", "pool": "auto"}, ["ana", "meets", "bob", "in", "lima"]),
}


def host(folder: Path) -> inlay.Host:
    """The base of a folder, as it was saved."""
    return inlay.Host(str(folder / "base"), device="cpu", dtype=torch.float32)


def runs(folder: Path) -> list[inlay.Run]:
    """What the checkpoint trains: a short run and a long one."""
    how = {"lr": 3e-3, "batch_size": 8, "val_size": 8, "warmup": 0.1, "clip": 1.0, "choose_by": "score"}
    data = {"data": str(folder / "rows.csv"), **how}
    short = inlay.Run(name="short", method="adapterbias", epochs=1, **data)
    return [short, inlay.Run(name="long", method="houlsby:size=4", epochs=5, **data)]


def answers(made: inlay.Host, name: str) -> list[dict[str, Any]]:
    """What an adapter answers to a few texts."""
    return made.predict([(name, text) for text in TEXTS])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir()
    size = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12}
    tiny.save_text_model(folder / "base", **size)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("text", "label"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(work.texts(32))
    expected: dict[str, Any] = {"adapters": {}, "library": {}}
    _adapters(folder, expected["adapters"])
    _library(folder, expected["library"])
    expected["sweep"] = _sweep(folder)
    expected["training"] = _checkpoint(folder)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def _adapters(folder: Path, expected: dict[str, Any]) -> None:
    (folder / "adapters").mkdir()
    made = host(folder)
    for number, spec in enumerate(METHODS):
        made.add("x", spec, labels=["no", "yes"], seed=number, head="tanh2" if number % 2 else "linear")
        tiny.shake(made, "x", number)
        for finish in (False, True) if spec in GATED else (True,):
            adapter = made.adapter("x", finish=finish)
            file = f"{number:02}{'' if finish else '-gates'}.safetensors"
            adapter.save(folder / "adapters" / file)
            made.load(adapter, "y")
            expected[file] = {"method": spec, "answers": answers(made, "y")}
            made.unload("y")
        made.unload("x")


def _library(folder: Path, expected: dict[str, Any]) -> None:
    made, library = host(folder), inlay.Library(folder / "library")
    for name, (rows, how, asked) in TASKS.items():
        run = inlay.Run(data=list(rows), **{**SETTINGS, **how})
        inlay.train(made, run, name=name, library=library)
        expected[f"{name}@1"] = made.predict([(name, asked)])
    tone = made.adapter("tone")
    for number in (2, 3):
        tiny.shake(made, "tone", number)
        adapter = made.adapter("tone")
        library.put(adapter if number == 2 else adapter.to("float16"))
        made.load(library.get(f"tone@{number}"), "again")
        answer = made.predict([("again", TASKS["tone"][2])])
        expected[f"tone@{number}"] = [{**answer[0], "task": "tone"}]
        made.unload("again")
    library.put(inlay.Ensemble((library.get("tone@1"), library.get("tone@2")), name="both"), base_name="base")
    made.load(library.get("both@1"), "both")
    expected["both@1"] = made.predict([("both", TASKS["tone"][2])])
    library.alias("tone", "prod", 1)
    library.alias("tone", "prod", 2)
    library.put(tone, "gone")
    library.remove("gone")
    library.put(tone, "gone")
    library.remove("topics@1")
    del expected["topics@1"]


def _sweep(folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    settings = {key: value for key, value in SETTINGS.items() if key != "lr"}
    run = inlay.Run(data="rows.csv", **{**settings, "method": "adapterbias"})
    found = inlay.sweep(host(folder), run, {"lr": [1e-3, 1e-2]}, seeds=1, store="sweep.db", name="tone")
    Path("sweep.db.lock").unlink()
    rows = {row.id: {"value": row.value, "metrics": row.metrics, "config": row.config} for row in found.rows}
    return {"rows": rows, "best": found.best.best.id}


def _checkpoint(folder: Path) -> list[dict[str, Any]]:
    whole = inlay.train(host(folder), [run.model_copy(update={"data": "rows.csv"}) for run in runs(folder)])
    made = host(folder)
    jobs = [
        Job(i, run.name, prepare(run.model_copy(update={"data": "rows.csv"}), made))
        for i, run in enumerate(runs(folder))
    ]
    loop = Loop(made, jobs, checkpoint=Checkpoint("checkpoint"), save_every=1e9)
    steps = loop.steps()
    for _ in range(7):
        next(steps)
    assert [job.state for job in jobs] == ["done", "active"]
    loop.save()
    steps.close()
    keys = ("name", "losses", "history", "metrics")
    return [{key: getattr(result, key) for key in keys} for result in whole]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]).resolve())
