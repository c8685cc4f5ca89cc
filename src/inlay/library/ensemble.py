"""Several adapters that answer as one: the same task and labels, on the same base.

A library keeps an ensemble as one version: a small file that names the files of its members, and a card that says
what each of them is. Members may have any method, head and pooling; each keeps its own calibration.
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
"""What a card says where an adapter has its method."""
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
    """How often each counts; once each by default."""
    name: str = ""
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """As an adapter's own."""
    refs: tuple[str, ...] = field(default=(), compare=False)
    """The versions in a library that members were taken from; empty where one was not."""

    def __post_init__(self) -> None:
        count = len(self.members)
        for name, one in (("weights", (1,) * count), ("refs", ("",) * count)):
            object.__setattr__(self, name, tuple(getattr(self, name)) or one)
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
        """The fingerprint of the base; with its pooler, if a member uses that."""
        return max((member.base for member in self.members), key=len)

    @property
    def task(self) -> str:
        """The task's spec, without what was fitted for single members."""
        task = _task(self.members[0])
        spec: str = replace(task, **{one.name: one.default for one in fields(task) if one.name in LEARNED}).spec
        return spec

    @property
    def labels(self) -> tuple[str, ...]:
        """The same of all members."""
        return self.members[0].labels

    @property
    def columns(self) -> Mapping[str, Any]:
        """Those the members were trained with; empty where nobody knows."""
        return self.about.get("columns") or self.members[0].about.get("columns") or {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those of all members, numbered."""
        return {f"{i}.{name}": t for i, one in enumerate(self.members, 1) for name, t in one.tensors.items()}

    @property
    def base_name(self) -> str:
        """What the base was called where it was trained."""
        return next((member.base_name for member in self.members if member.base_name), "")

    @staticmethod
    def shared(members: Sequence[Adapter]) -> dict[str, Any]:
        """What is known of an ensemble from its members alone, without measuring it."""
        known = {"columns": members[0].about.get("columns"), "metric": members[0].about.get("metric")}
        return {key: value for key, value in known.items() if value}

    @staticmethod
    def parameters(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """How many parameters members have together, where their cards all say it."""
        found = [one if isinstance(one := card.get("parameters"), Mapping) else {} for card in cards]
        keys = ("adapter", "head", "share_of_base")
        return {key: sum(one[key] for one in found) for key in keys if all(key in one for one in found)}

    def content(self, members: Sequence[str]) -> bytes:
        """The bytes of its file, given the hashes of its members' files; the same ensemble always gives the same."""
        from safetensors.torch import save

        own = {"name": self.name, "base": self.base, "task": self.task, "labels": list(self.labels)}
        more = {"members": list(members), "weights": list(self.weights), "about": self.about}
        try:
            made: bytes = save({}, metadata={"inlay": json.dumps({"format": FORMAT, **own, **more})})
        except (TypeError, ValueError) as error:
            raise AdapterError(f"{self.name or 'this ensemble'} cannot be written: {error}") from None
        return made

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
            if what := _difference(self.members[0], member):
                raise AdapterError(f"{called[0]} and {name} cannot answer as one: {what}")


def read_ensemble(content: bytes, source: str) -> dict[str, Any]:
    """What an ensemble's file says; the members' files are named in it by their hashes."""
    written = header.card_of(content, source)
    if (version := written.pop("format", None)) != FORMAT:
        raise AdapterError(f"{source} is not an ensemble: its format is {version}, not {FORMAT}")
    wrong = [key for key, kind in _KINDS.items() if not isinstance(written.get(key), kind)]
    if wrong or set(written) != set(_KINDS):
        raise AdapterError(f"{source} has a damaged card: expected {sorted(_KINDS)}, found {sorted(written)}")
    return written


def _difference(one: Adapter, other: Adapter) -> str:
    """Why two adapters cannot answer as one; empty if they can."""
    bases = [each.base.partition("+")[0] for each in (one, other)]
    if bases[0] != bases[1]:
        called = (f"{each.base_name} {base}".strip() for each, base in zip((one, other), bases, strict=True))
        return f"they belong to different bases ({', '.join(called)})"
    mine, theirs = _task(one), _task(other)
    if type(mine) is not type(theirs):
        return f"one is for {mine.name}, the other for {theirs.name}"
    if one.labels != other.labels:
        alone = [label for label in (*one.labels, *other.labels) if (label in one.labels) != (label in other.labels)]
        return f"only one of them knows the label {alone[0]!r}" if alone else "their labels have another order"
    for each in fields(mine):
        if each.name not in LEARNED and getattr(mine, each.name) != getattr(theirs, each.name):
            return f"{each.name} is {getattr(mine, each.name)} in one and {getattr(theirs, each.name)} in the other"
    pairs = {bool(each.about["columns"].get("pair")) for each in (one, other) if each.about.get("columns")}
    return "one was trained on pairs of texts, the other on single texts" if len(pairs) > 1 else ""


def _task(adapter: Adapter) -> Any:
    name, options = config.split_spec(adapter.task)
    return config.build(tasks.find(name), name, options)
