"""`inlay demo`: three tasks trained one after another on one frozen base, beside full fine-tuning of each.

The data comes with the package and is split here, by seed. Test rows are in files of their own: they choose neither the
epoch nor the settings below. Those were chosen on validation rows, from more tries for the adapters than for full
fine-tuning. Everything runs in fp32 on the CPU, so that all machines show the same results up to rounding.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay import metrics
from inlay.cli import demo_page, info, output
from inlay.cli.help import OUTPUT, RUNNING
from inlay.errors import BaseError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from inlay.engine.host import Host
    from inlay.library.library import Library
    from inlay.runs.result import Result
    from inlay.runs.run import Run


@dataclass(frozen=True)
class Lesson:
    """A task of the demo: its data, and how it is trained both ways."""

    name: str
    what: str
    file: str
    label: str
    metric: str
    lr: float
    full_lr: float
    epochs: int


LESSONS = (
    Lesson("tickets", "which team should get a message", "tickets.csv", "team", "accuracy", 3e-3, 3e-4, 2),
    Lesson("reviews", "positive or negative", "reviews.tsv", "sentiment", "accuracy", 2e-3, 2e-4, 2),
    Lesson("bookings", "people, places, dates, amounts", "bookings.conll", "tags", "f1", 5e-3, 5e-4, 4),
)
BASE: str | None = None
"""The default base."""
METHOD = "houlsby:size=64"
BATCH = 16
SEED = 0
TEST, VALIDATION = "20%", "15%"
"""Shares of all rows, and of the remaining rows."""
SENTENCES = (
    "My parcel was due on Monday and nobody at Swiftline Couriers picks up the phone. Terrible service.",
    "Ana Petrova in Lisbon had it sorted by 14 May. Lovely people, I would happily buy from them again!",
    "I was charged 40 euros twice in March. Please refund one of the payments, this is really disappointing.",
)
CHECKS = {
    "first_unchanged": "adding the other tasks changed no bit of the first task's outputs",
    "mixed_equals_alone": "in the mixed batch every task answers as it does alone (scores to rounding)",
    "base_unchanged": "the base's weights are unchanged",
}
TOLERANCE = 1e-5


def demo(
    out: Annotated[Path, OUTPUT.option("FOLDER", "The folder for the report, the adapters and the data.")] = Path(
        "inlay-demo"
    ),
    quick: Annotated[bool, RUNNING.flag("--quick", "Train one epoch per task: faster, with lower scores.")] = False,
    as_json: output.AsJson = False,
) -> None:
    """Train three tasks on one base, compare them with full fine-tuning, and write a report.

    Takes about a minute and a half on two idle cores. Needs no network.

    Examples:
        inlay demo
        inlay demo --quick --out /tmp/demo
    """
    began = time.perf_counter()
    screen = output.console(as_json)
    names = ", ".join(lesson.name for lesson in LESSONS)
    screen.print(f"Training {len(LESSONS)} adapters on one frozen base, one after another: {names}.", style="bold")
    spent = "less than a minute" if quick else "about a minute and a half"
    screen.print(f"Then fine-tuning a full copy of the base for each task, to compare. This takes {spent}.\n")
    data = {lesson.name: _write_data(lesson, out / "data" / lesson.name) for lesson in LESSONS}
    document = _run(data, out, quick, screen)
    document |= {"seconds": round(time.perf_counter() - began, 1), "report": str(out / "report.html")}
    demo_page.write(out / "report.html", document, CHECKS)
    demo_page.show(screen, document, CHECKS)
    output.document(document, as_json)
    if not all(document["checks"].values()):
        raise typer.Exit(1)


def _run(data: Mapping[str, Mapping[str, int]], out: Path, quick: bool, screen: output.Console) -> dict[str, Any]:
    import torch

    from inlay.engine.host import Host
    from inlay.library.library import Library

    host, library = Host(BASE, device="cpu", dtype=torch.float32), Library(out / "library")
    size, root = host.base.sites.size, library.root
    screen.print(f"base: {host.base.name}, {size:,} parameters, frozen")
    adapters, before, same = _train_in_turn(host, out, quick, screen, library)
    mixed, as_alone = _mixed(host, list(adapters))
    screen.print("\nfull fine-tuning, one copy of the base per task:")
    full = {lesson.name: _full(host, lesson, out, quick, screen) for lesson in LESSONS}
    same["full fine-tuning"] = _identical(before, _logits(host, LESSONS[0].name, out))
    checks = {
        "first_unchanged": all(same.values()),
        "mixed_equals_alone": as_alone,
        "base_unchanged": _verified(host),
    }
    tasks = [_task(lesson, data[lesson.name], out, adapters[lesson.name], full[lesson.name]) for lesson in LESSONS]
    return {
        "base": {"name": host.base.name, "parameters": size, "fingerprint": host.base.fingerprint},
        "tasks": tasks,
        "total": {"adapters": size + _sum(tasks, "adapter"), "full": _sum(tasks, "full")},
        "checks": checks,
        "unchanged_after": same,
        "mixed": mixed,
        "library": root,
        "try": f'{_program()} predict {LESSONS[0].name} "where is my parcel" --library {shlex.quote(root)}',
        "versions": info.versions("torch", "transformers"),
    }


def _train_in_turn(
    host: Host, out: Path, quick: bool, screen: output.Console, library: Library
) -> tuple[dict[str, Result], list[Tensor], dict[str, bool]]:
    """The results, the first task's logits before the others were trained, and whether each left them the same."""
    first = LESSONS[0].name
    before: list[Tensor] = []
    results: dict[str, Result] = {}
    same: dict[str, bool] = {}
    for lesson in LESSONS:
        results[lesson.name] = _train(host, _make_run(lesson, out, quick), screen, library)
        if lesson.name == first:
            before = _logits(host, first, out)
        else:
            same[lesson.name] = _identical(before, _logits(host, first, out))
    return results, before, same


def _write_data(lesson: Lesson, folder: Path) -> dict[str, int]:
    """Split a dataset of the package into files, and count their rows. The same text is never on two sides."""
    from importlib import resources

    from inlay.data.source import open_source
    from inlay.data.split import split

    with resources.as_file(resources.files("inlay") / "demo" / lesson.file) as path:
        rows = [dict(record.fields) for record in open_source(path).records()]
    keys = [json.dumps({k: v for k, v in row.items() if k != lesson.label}) for row in rows]
    classes = None if isinstance(rows[0][lesson.label], list) else [row[lesson.label] for row in rows]

    def cut(indices: Sequence[int], share: str) -> tuple[list[int], list[int]]:
        strata = None if classes is None else [classes[i] for i in indices]
        kept, held_out = split(len(indices), SEED, val_size=share, stratify=strata, groups=[keys[i] for i in indices])
        return [indices[i] for i in kept], [indices[i] for i in held_out]

    rest, test = cut(range(len(rows)), TEST)
    train, validation = cut(rest, VALIDATION)
    parts = {"train": train, "validation": validation, "test": test}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            lines = "".join(json.dumps(rows[i], ensure_ascii=False) + "\n" for i in part)
            (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None
    return {name: len(part) for name, part in parts.items()}


def _make_run(lesson: Lesson, out: Path, quick: bool, **changes: Any) -> Run:
    from inlay.runs.run import Run

    settings = {"name": lesson.name, "method": METHOD, "lr": lesson.lr, "batch_size": BATCH, "seed": SEED, **changes}
    settings["dropout"] = False  # the adapter for bookings then needs fewer steps; both ways train alike
    data, epochs = str(out / "data" / lesson.name), 1 if quick else lesson.epochs
    return Run(data=data, choose_by="score", label=lesson.label, metric=lesson.metric, epochs=epochs, **settings)


def _full(host: Host, lesson: Lesson, out: Path, quick: bool, screen: output.Console) -> Result:
    """Train every weight, on the same rows and epochs, with the same choice of the best epoch; not kept."""
    name = f"{lesson.name}-full"
    run = _make_run(lesson, out, quick, name=name, method="finetune", lr=lesson.full_lr)
    result = _train(host, run, screen)
    host.unload(name)
    return result


def _train(host: Host, run: Run, screen: output.Console, library: Library | None = None) -> Result:
    from inlay.cli.train_display import Progress
    from inlay.training.api import train

    with Progress(screen, 1, {run.name: run.metric or ""}) as progress:
        result = train(host, run, callbacks=[progress], library=library, progress=False)
    value = f"test {result.metric} {result.metrics['test'][result.metric]:.3f}"
    count = f"{result.parameters['adapter']:,} parameters"
    screen.print(f"{run.name}: trained {count} ({result.method}) in {result.seconds:.0f} s, {value}")
    return result


def _logits(host: Host, name: str, out: Path) -> list[Tensor]:
    """A task's logits for its test texts."""
    import torch

    from inlay.data.source import open_source

    with torch.no_grad():
        batch = host.batch([str(r.fields["text"]) for r in open_source(out / "data" / name / "test.jsonl").records()])
        return host.logits(batch, [name] * len(batch.lengths))


def _identical(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(before, after, strict=True))


def _mixed(host: Host, names: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
    """Every sentence for every task in one batch, and whether the answers are those that each task gives alone."""
    requests = [(name, text) for text in SENTENCES for name in names]
    mixed = host.predict(requests)
    alone = [host.predict([request])[0] for request in requests]
    return mixed, all(_same(a, b) for a, b in zip(mixed, alone, strict=True))


def _same(a: Any, b: Any) -> bool:
    """Equal, numbers up to rounding."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return abs(a - b) <= TOLERANCE if isinstance(a, float) else bool(a == b)


def _verified(host: Host) -> bool:
    try:
        host.base.verify()
    except BaseError:
        return False
    return True


def _task(lesson: Lesson, rows: Mapping[str, int], out: Path, adapter: Result, full: Result) -> dict[str, Any]:
    facts = {"name": lesson.name, "what": lesson.what, "metric": adapter.metric, "rows": dict(rows)}
    gold = _entities(out / "data" / lesson.name / "test.jsonl") if adapter.metric == "f1" else rows["test"]
    return facts | {"adapter": _side(adapter, gold), "full": _side(full, gold)}


def _entities(file: Path) -> int:
    """How many entities the rows have."""
    from inlay.data.source import open_source

    return sum(len(metrics.entities(record.fields["tags"])) for record in open_source(file).records())


def _side(result: Result, gold: int) -> dict[str, Any]:
    """One way of training a task. The test rows have `gold` rows or entities to get right; `right` of them were."""
    test = result.metrics["test"]
    hits = test["recall"] if result.metric == "f1" else test[result.metric]
    return {
        "method": result.method,
        "parameters": result.parameters["adapter"],
        "head": result.parameters["head"],
        "test": test[result.metric],
        "right": round(hits * gold),
        "of": gold,
        "validation": [(epoch["epoch"], epoch["metrics"][result.metric]) for epoch in result.history],
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 1),
        "config": result.config,
    }


def _sum(tasks: Sequence[Mapping[str, Any]], side: str) -> int:
    return sum(task[side]["parameters"] + task[side]["head"] for task in tasks)


def _program() -> str:
    """How to call this program: by its path where PATH lacks it because no environment is activated."""
    program = sys.argv[0]
    return "inlay" if shutil.which("inlay") or Path(program).stem != "inlay" else shlex.quote(program)
