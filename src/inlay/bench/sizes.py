"""What an adapter takes in the bank and in a library, from its shapes alone.

A group's stacks have room for a power of two, and one entry of it stands for "not in this group". Files are predicted
as they are written: tensors at their true sizes, a header that names each, and a card as training leaves it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.bank import sparse
from inlay.bank.delta import Delta, Method, Part, SlotMethod, WeightMethod, params_of
from inlay.base.sites import Sites
from inlay.heads.head import head_part
from inlay.library import cards
from inlay.library.adapter import FORMAT, Adapter
from inlay.methods.diffprune import DiffPrune

_FLOAT = 4
"""Stacks are fp32 on every device."""
_METRICS = {"accuracy": 0.0, "f1_macro": 0.0, "f1_micro": 0.0, "f1_weighted": 0.0, "matthews": 0.0}
_NUMBER = 0.8765432109876543


@dataclass(frozen=True)
class Sizes:
    """One adapter with its head."""

    entry: int
    """Bytes of one entry in the stacks, padding included."""
    own: int
    """Bytes that are not stacked with those of others: weight-level methods."""
    file: int
    file_fp16: int
    card: int

    def bank(self, adapters: int) -> int:
        """Bytes of a bank with this many of these."""
        return (capacity(adapters) * self.entry if adapters else 0) + adapters * self.own

    def most(self, room: int) -> int:
        """How many fit into this much memory."""
        return bisect_right(range(1, 1 << 40), room, key=self.bank)


def capacity(adapters: int) -> int:
    """Entries of stacks that hold this many adapters: they double when they are full, and one stays free."""
    return max(2, 1 << adapters.bit_length())


def sizes_of(method: Method, sites: Sites, labels: int, epochs: int) -> Sizes:
    """The sizes of a trained adapter for a task of classification."""
    method = method.finished()
    head = [head_part("linear", labels, sites.hidden)]
    parts = [*method.parts(sites), *head] if isinstance(method, SlotMethod) else head
    tensors = _stored(method, sites) | {name: (p.numel, _FLOAT) for name, p in params_of(head).items()}
    own = sum(n * size for n, size in _stored(method, sites).values()) if isinstance(method, WeightMethod) else 0
    adapter = _typical_adapter(method, labels, epochs)
    text = json.dumps({"format": FORMAT, **_fields_of(adapter), "full": adapter.full})
    file, half = (_file_bytes(tensors, text, size) for size in (4, 2))
    card = len(cards.encode(cards.make(adapter, "0" * 64, file, _CARD_FACTS, None), adapter.name, 1))
    return Sizes(_entry_bytes(parts), own, file, half, card)


def _entry_bytes(parts: Sequence[Part]) -> int:
    """One entry of every stack, at the size of its bucket; a row that parts share is there once, and what all adapters
    share is not an entry's."""
    rows: dict[tuple[Delta, str], int] = {}
    for part in parts:
        delta = part.delta.bucketed()
        padded = delta.params(part.site)
        own_names = [(name, full) for name, full in part.names().items() if padded[name].role != "shared"]
        rows |= {(delta, full): padded[name].numel for name, full in own_names}
    return _FLOAT * sum(rows.values())


def _stored(method: Method, sites: Sites) -> dict[str, tuple[int, int]]:
    """Every tensor of a file: how many numbers, and the bytes of one. Kept differences are spread evenly."""
    if not isinstance(method, DiffPrune):
        trained = {name: p for name, p in method.params(sites).items() if p.role == "trained"}
        return {name: (p.numel, _FLOAT) for name, p in trained.items()}
    targets = method.targets(sites)
    each = method.count(sites) / len(targets)
    ends = [round(each * i) for i in range(len(targets) + 1)]
    kept = {name: ends[i + 1] - ends[i] for i, name in enumerate(targets)}
    return {name + suffix: (n, _FLOAT) for name, n in kept.items() for suffix in (sparse.INDEX, sparse.VALUE)}


def _file_bytes(tensors: dict[str, tuple[int, int]], text: str, size: int) -> int:
    """A safetensors file; positions of sparse tensors stay int32."""
    header: dict[str, object] = {"__metadata__": {"inlay": text}}
    at = 0
    for name, (numel, full) in sorted(tensors.items()):
        end = at + numel * (full if name.endswith(sparse.INDEX) else size)
        header[name] = {"dtype": "F32", "shape": [numel], "data_offsets": [at, end]}
        at = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-length // 8) * 8 + at


def _typical_adapter(method: Method, labels: int, epochs: int) -> Adapter:
    """An adapter as `inlay train` describes it, without its tensors; an evaluation after every epoch."""
    metrics = dict.fromkeys(_METRICS, _NUMBER)
    evaluation = {"stage": "task", "step": 1000, "epoch": 1.0, "metrics": metrics, "loss": _NUMBER}
    about = {
        "metrics": {"validation": metrics},
        "metric": "accuracy",
        "best": {"step": 1000, "epoch": 1.0},
        "data": "0" * 32,
        "files": {"train": {"bytes": 1_000_000, "sha256": "0" * 64}},
        "scored_on": {"validation": "0" * 32},
        "config": {"data": "training.csv", "name": "task-0000", "method": method.spec, "epochs": 5},
        "columns": {"text": "text", "label": "label"},
        "history": [evaluation] * epochs,
    }
    names = tuple(f"label-{i:02}" for i in range(labels))
    base, task = "sha256:" + "0" * 64, "classification:temperature=0.9876"
    return Adapter(method.spec, base, {}, 0, "linear", "mean", names, "task-0000", task, about)


_CARD_FACTS = {
    "base_name": "sentence-transformers/all-MiniLM-L6-v2",
    "base_parameters": 100_000_000,
    "parameters": {"adapter": 1_000_000, "head": 1_000, "share_of_base": _NUMBER},
    "seconds": 100.0,
}


def _fields_of(adapter: Adapter) -> dict[str, object]:
    fields = ("method", "base", "seed", "head", "pool", "labels", "name", "task", "about")
    return {name: getattr(adapter, name) for name in fields}
