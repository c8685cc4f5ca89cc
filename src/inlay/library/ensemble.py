"""Several adapters that answer as one: the same task and labels, on the same base.

A library keeps an ensemble as one version: a small file that names the files of its members, and a card that describes
each of them. Members may have any method, head and pooling; each keeps its own calibration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from inlay import config
from inlay.errors import AdapterError
from inlay.library import defaults, header
from inlay.library.adapter import Adapter
from inlay.registry import tasks

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 3
"""Of the file; 1 and 2 are adapters."""
METHOD = "ensemble"
"""What a card has instead of a method."""
LEARNED = ("temperature", "mean", "scale")
"""Options of tasks that are fitted for every member."""
_KINDS: dict[str, Any] = {
    "name": str,
    "base": str,
    "task": str,
    "labels": list,
    "members": list,
    "weights": list,
    "about": dict,
}


@dataclass(frozen=True)
class Ensemble:
    """Members, and how much each counts."""

    members: tuple[Adapter, ...] = field(repr=False)
    weights: tuple[int, ...] = ()
    """How often each member counts; once by default."""
    name: str = ""
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """As that of an adapter."""
    refs: tuple[str, ...] = field(default=(), compare=False)
    """The versions in a library that members were taken from; empty for a member from elsewhere."""

    def __post_init__(self) -> None:
        count = len(self.members)
        for name, default in (("weights", (1,) * count), ("refs", ("",) * count)):
            object.__setattr__(self, name, tuple(getattr(self, name)) or default)
        self._check()

    method = METHOD
    seed = 0

    @property
    def full(self) -> dict[str, str]:
        """The specs of method and task with all their options, as an adapter's."""
        return {"method": METHOD, "task": defaults.in_full(tasks, self.task)}

    @property
    def head(self) -> str | None:
        """That of all members, or "several"."""
        return self.members[0].head if len({member.head for member in self.members}) == 1 else "several"

    @property
    def pool(self) -> str:
        """That of all members, or "several"."""
        return self.members[0].pool if len({member.pool for member in self.members}) == 1 else "several"

    @property
    def base(self) -> str:
        """The fingerprint of the base, with its pooler if a member uses that."""
        return max((member.base for member in self.members), key=len)

    @property
    def task(self) -> str:
        """The task's spec, without what was fitted for single members."""
        task = _task(self.members[0])
        return str(replace(task, **{f.name: f.default for f in fields(task) if f.name in LEARNED}).spec)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names, the same for all members."""
        return self.members[0].labels

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns that members were trained with; empty if not known."""
        return self.about.get("columns") or self.members[0].about.get("columns") or {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of all members, numbered."""
        return {f"{i}.{name}": t for i, member in enumerate(self.members, 1) for name, t in member.tensors.items()}

    @property
    def base_name(self) -> str:
        """The base's name where it was trained."""
        return next((member.base_name for member in self.members if member.base_name), "")

    @staticmethod
    def shared(members: Sequence[Adapter]) -> dict[str, Any]:
        """What its members alone say about an ensemble, without measuring it."""
        known = {"columns": members[0].about.get("columns"), "metric": members[0].about.get("metric")}
        return {key: value for key, value in known.items() if value}

    @staticmethod
    def parameters(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """How many parameters members have together, if all their cards say so."""
        counts = [c if isinstance(c := card.get("parameters"), Mapping) else {} for card in cards]
        keys = ("adapter", "head", "share_of_base")
        return {key: sum(c[key] for c in counts) for key in keys if all(key in c for c in counts)}

    def content(self, members: Sequence[str]) -> bytes:
        """The bytes of its file, given the hashes of its members' files; the same ensemble always gives the same."""
        from safetensors.torch import save

        card = {"name": self.name, "base": self.base, "task": self.task, "labels": list(self.labels)}
        of_members = {"members": list(members), "weights": list(self.weights), "about": self.about}
        try:
            content: bytes = save({}, metadata={"inlay": json.dumps({"format": FORMAT, **card, **of_members})})
        except (TypeError, ValueError) as error:
            raise AdapterError(f"{self.name or 'this ensemble'} cannot be written: {error}") from None
        return content

    def to(self, dtype: str) -> Ensemble:
        """The same with the members' numbers in another type; see `Adapter.to`."""
        members = tuple(member.to(dtype) for member in self.members)
        return Ensemble(members, self.weights, self.name, self.about, self.refs)

    def _check(self) -> None:
        named = zip(self.refs, self.members, strict=True)
        called = [ref or member.name or f"member {i}" for i, (ref, member) in enumerate(named, 1)]
        if len(self.members) < 2:
            raise AdapterError(f"an ensemble needs at least two different members, not {len(self.members)}")
        if len(self.weights) != len(self.members) or any(type(w) is not int or w < 1 for w in self.weights):
            raise AdapterError(f"every member counts once or more often, not {list(self.weights)}")
        for name, member in zip(called, self.members, strict=True):
            if not isinstance(member, Adapter):
                raise AdapterError(f"{name} is an ensemble itself; name its members instead")
            if member.head is None or not member.task or not _task(member).joins_answers:
                raise AdapterError(f"{name} gives no answers that can be joined, so it cannot be in an ensemble")
        for name, member in list(zip(called, self.members, strict=True))[1:]:
            if reason := _difference(self.members[0], member):
                raise AdapterError(f"{called[0]} and {name} cannot answer as one: {reason}")


def read_ensemble(content: bytes, source: str) -> dict[str, Any]:
    """The fields of an ensemble's file; it names the members' files by their hashes."""
    written = header.card_of(content, source)
    if (version := written.pop("format", None)) != FORMAT:
        raise AdapterError(f"{source} is not an ensemble: its format is {version}, not {FORMAT}")
    wrong = [key for key, kind in _KINDS.items() if not isinstance(written.get(key), kind)]
    if wrong or set(written) != set(_KINDS):
        raise AdapterError(f"{source} has a damaged card: expected {sorted(_KINDS)}, found {sorted(written)}")
    return written


def _difference(first: Adapter, other: Adapter) -> str:
    """Why two adapters cannot answer as one; empty if they can."""
    bases = [adapter.base.partition("+")[0] for adapter in (first, other)]
    if bases[0] != bases[1]:
        called = (f"{adapter.base_name} {base}".strip() for adapter, base in zip((first, other), bases, strict=True))
        return f"they belong to different bases ({', '.join(called)})"
    mine, theirs = _task(first), _task(other)
    if type(mine) is not type(theirs):
        return f"one is for {mine.name}, the other for {theirs.name}"
    if first.labels != other.labels:
        alone = [label for label in first.labels + other.labels if (label in first.labels) != (label in other.labels)]
        return f"only one of them knows the label {alone[0]!r}" if alone else "their labels have another order"
    for name in (option.name for option in fields(mine)):
        if name not in LEARNED and getattr(mine, name) != getattr(theirs, name):
            return f"{name} is {getattr(mine, name)} in one and {getattr(theirs, name)} in the other"
    pairs = {bool(adapter.about["columns"].get("pair")) for adapter in (first, other) if adapter.about.get("columns")}
    return "one was trained on pairs of texts, the other on single texts" if len(pairs) > 1 else ""


def _task(adapter: Adapter) -> Any:
    name, options = config.split_spec(adapter.task)
    return config.build(tasks.find(name), name, options)
