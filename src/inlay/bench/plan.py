"""Will N tasks fit, and what do they cost? From shapes, the memory estimate of training, and measured speed.

Everything is counted on meta tensors; no weights are needed. N tasks fit when all of their adapters are in the bank
beside the base, and a run can train. When they do not, the service pages adapters, and the plan says how many it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inlay.bank.delta import Method, WeightMethod, parse
from inlay.base.sites import Sites
from inlay.bench.figures import Figures, products_of
from inlay.bench.sizes import Sizes, sizes_of
from inlay.library.card_text import size
from inlay.training.memory import PER_TOKEN, run_bytes, slots_in

STEP_ROWS = 32
"""Rows of a run's step, as measured."""
_LONG = 2
"""A long row in mean ones: the 95th percentile of GLUE's lengths."""
_ROOM = 0.9
"""The share of a device's memory to use: kernels, recordings and fragments take the rest."""
_WIDTH = {"cuda": 2, "cpu": 4}
"""Bytes of a number in the base."""
_BATCH = {"cuda": 32768, "cpu": 4096}
"""Tokens of a batch that is served."""
SMALLER = ("houlsby:size=8", "lora", "bitfit", "adapterbias", "adapterbias:share=both")
"""What to try when a method's adapters do not fit, the largest first."""


@dataclass(frozen=True)
class Question:
    """What is to be planned."""

    tasks: int
    method: Method
    rows: int = 5000
    """Rows of every task, for training."""
    tokens: int = 32
    """Tokens of a row, on average."""
    epochs: int = 5
    labels: int = 2
    memory: int | None = None
    """Bytes of the device; None is that of the figures."""


def plan(question: Question, name: str, sites: Sites, figures: Figures) -> dict[str, Any]:
    """The whole answer as one document.

    Args:
        name: what the base is called.
    """
    sizes = sizes_of(question.method, sites, question.labels, question.epochs)
    serving = _serving(question, sites, sizes, figures)
    training = _training(question, sites, figures)
    document = {
        "tasks": question.tasks,
        "fits": bool(serving["resident"] >= question.tasks and training["side_by_side"]),
        "base": {"name": name, "parameters": sites.size, "bytes": sites.size * _WIDTH[figures.device]},
        "method": question.method.spec,
        "adapter": {
            "parameters": question.method.count(sites),
            "bank_bytes": sizes.entry + sizes.own,
            "file_bytes": sizes.file,
            "file_bytes_fp16": sizes.file_fp16,
            "card_bytes": sizes.card,
        },
        "device": {"name": figures.machine, "memory": question.memory or figures.memory},
        "serving": serving,
        "training": training,
        "disk": {
            "bytes": question.tasks * (sizes.file + sizes.card),
            "bytes_fp16": question.tasks * (sizes.file_fp16 + sizes.card),
            "files": 2 * question.tasks,
        },
        "finetuning": _finetuning(question, sites, figures),
        "figures": {**asdict(figures), "notes": _notes(question, name, sites, figures)},
    }
    return document | {"would_fit": [] if document["fits"] else _would_fit(question, sites, figures, serving)}


def room_for(question: Question, sites: Sites, figures: Figures) -> int:
    """Bytes for adapters: what the base and the largest batch leave."""
    width = _WIDTH[figures.device]
    batch = _BATCH[figures.device] * sites.hidden * PER_TOKEN * width  # one layer's worth: nothing is kept
    return int(_ROOM * (question.memory or figures.memory)) - sites.size * width - batch


def side_by_side(question: Question, sites: Sites, figures: Figures) -> tuple[int, int]:
    """How many runs train at once, and the bytes of one: what the training loop would estimate."""
    width = _WIDTH[figures.device]
    free = (question.memory or figures.memory) - sites.size * width
    need = run_bytes(sites, question.method, STEP_ROWS, _LONG * question.tokens, width)
    return max(0, slots_in(free, need, figures.device, question.tasks)), need


def _serving(question: Question, sites: Sites, sizes: Sizes, figures: Figures) -> dict[str, Any]:
    resident = min(question.tasks, sizes.most(room_for(question, sites, figures)))
    speed = None
    if not isinstance(question.method, WeightMethod):  # those run one task at a time, and that was not measured
        speed = _scaled(figures.serving(), sites, figures) / question.tokens
    return {
        "resident": resident,
        "bytes": sizes.bank(resident),
        "bytes_for_all": sizes.bank(question.tasks),
        "rows_per_second": speed,
    }


def _training(question: Question, sites: Sites, figures: Figures) -> dict[str, Any]:
    runs, need = side_by_side(question, sites, figures)
    alone = isinstance(question.method, WeightMethod)
    speed = figures.finetuning() if alone else figures.training(max(1, runs))
    return {"side_by_side": runs, "bytes_per_run": need, **_hours(question, _scaled(speed, sites, figures))}


def _finetuning(question: Question, sites: Sites, figures: Figures) -> dict[str, Any]:
    """The same tasks as full models, each fine-tuned by itself."""
    need = run_bytes(sites, parse("finetune"), STEP_ROWS, _LONG * question.tokens, _WIDTH[figures.device])
    size = sites.size * _WIDTH[figures.device]
    memory = int(_ROOM * (question.memory or figures.memory))
    return {
        "parameters": question.tasks * sites.size,
        "disk_bytes": question.tasks * sites.size * 4,
        "disk_bytes_fp16": question.tasks * sites.size * 2,
        "bytes_for_all": question.tasks * size,
        "resident": min(question.tasks, memory // size),
        "bytes_per_run": need,
        "measured": figures.finetune_measured,
        **_hours(question, _scaled(figures.finetuning(), sites, figures)),
    }


def _hours(question: Question, speed: float) -> dict[str, float]:
    tokens = question.tasks * question.rows * question.tokens * question.epochs
    return {"tokens": tokens, "tokens_per_second": speed, "hours": tokens / speed / 3600}


def _scaled(speed: float, sites: Sites, figures: Figures) -> float:
    return speed * figures.products / products_of(sites)


def _notes(question: Question, name: str, sites: Sites, figures: Figures) -> list[str]:
    """Notes on figures that were measured under other conditions, or not at all."""
    spec, ratio = question.method.spec, figures.products / products_of(sites)
    notes = []
    if figures.base != name:
        notes.append(f"speed was measured on {figures.base}; for {name} it is scaled by their products ({ratio:.2g}x)")
        if ratio > 1:
            notes[-1] += ", which is more than a small base reaches on a GPU" * (figures.device == "cuda")
    if parse(figures.method) != question.method:
        notes.append(f"speed was measured with {figures.method}; {spec} is taken to be as fast")
    if figures.busy:
        notes.append(f"the machine was busy (load {figures.load:.1f} a core): measure again when it is idle")
    if not figures.finetune_measured:
        notes.append("the speed of full fine-tuning is an estimate from the bare base's, not a measurement")
    return notes


def _would_fit(question: Question, sites: Sites, figures: Figures, serving: Mapping[str, Any]) -> list[str]:
    """What would make them fit, or serve them anyway."""
    ways = []
    total = question.memory or figures.memory
    room = room_for(question, sites, figures)
    _, need = side_by_side(question, sites, figures)
    if serving["resident"] < question.tasks:
        if serving["resident"]:
            ways.append(
                f"inlay serve --resident {serving['resident']} keeps that many loaded, and loads the others on demand"
            )
        missing = serving["bytes_for_all"] - room
        ways.append(f"a device of {size(total + missing / _ROOM)}, or several that share the tasks")
        for spec in SMALLER:
            smaller = sizes_of(parse(spec), sites, question.labels, question.epochs)
            if smaller.bank(question.tasks) <= room:
                ways.append(f"--method {spec}, which takes {size(smaller.bank(question.tasks))} for all")
                break
    if not slots_in(total - sites.size * _WIDTH[figures.device], need, figures.device, 1):
        ways.append(f"a device with {size(2 * need)} beside the base, to train even one run")
    return ways
