"""Every task of a library trained again on another base, from its card; compared, and switched only on request.

A plain name means a name's newest version, so a new version in the same library would silently switch all its users.
What is trained here goes into a library of its own (*candidates*) under the same names: it can be looked at, asked and
served beside the old one. Switching copies versions over, one new version per name; undoing it removes these again.

Old and new are compared on the same rows: a run whose data gives another hash than its card says is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inlay import metrics
from inlay.base.load import Base
from inlay.engine.host import Host
from inlay.errors import InlayError, LibraryError, RunError
from inlay.library import card_text, cards
from inlay.library.cards import Entry
from inlay.library.defaults import restated
from inlay.library.library import Library
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.result import Result
from inlay.runs.run import Run, from_config
from inlay.training.api import card_facts
from inlay.training.checkpoint import Checkpoint

_FROM = "retrained_from"
"""In a candidate's card: what it was trained after."""
_SWITCHED = "switched_from"
"""In the card of a version that a switch has put into a library: what was used before."""


@dataclass(frozen=True)
class Old:
    """A task as the library has it, and the run that trains it again."""

    entry: Entry
    run: Run


@dataclass(frozen=True)
class Change:
    """A task before and after."""

    old: Entry
    new: Entry | None = None
    """None if it was not trained."""
    problem: str = ""
    switched: Entry | None = None
    """The version in the library, where it was switched."""

    @property
    def metric(self) -> str:
        """The metric that decided when the old one was trained."""
        return str(self.old.card.get("metric") or "")

    def values(self, split: str) -> tuple[float | None, float | None]:
        """The deciding metric of the old and the new one on the rows of a split."""
        old, new = (card_text.metrics({} if e is None else e.card).get(split, {}) for e in (self.old, self.new))
        return old.get(self.metric), new.get(self.metric)

    @property
    def loss(self) -> float | None:
        """How much worse the new one is on validation rows: below zero if it is better, None if unknown."""
        old, new = self.values("validation")
        if old is None or new is None or math.isnan(new):
            return None
        worse = new - old if self.metric in metrics.LOWER_IS_BETTER else old - new
        return -math.inf if math.isnan(old) else worse

    def is_good(self, tolerance: float) -> bool:
        """Whether the new one is not worse than the old one by more than this."""
        return self.loss is not None and self.loss <= tolerance + 1e-12  # 0.81 - 0.80 is not 0.01

    def document(self) -> dict[str, Any]:
        """What `inlay retrain --json` prints of it."""
        facts: dict[str, Any] = {
            "name": self.old.name,
            "old": self.old.ref,
            "new": None if self.new is None else self.new.ref,
            "switched": None if self.switched is None else self.switched.ref,
            "metric": self.metric,
        }
        for split in ("validation", "test"):
            old, new = self.values(split)
            if old is not None or new is not None:
                difference = None if old is None or new is None else new - old
                facts[split] = {"old": old, "new": new, "difference": difference}
        facts["parameters"] = {"old": parameters(self.old), "new": parameters(self.new)}
        return facts | ({"problem": self.problem} if self.problem else {})


def parameters(entry: Entry | None) -> int | None:
    """How many an adapter has, if its card says so."""
    count = None if entry is None else card_text.section(entry.card, "parameters").get("adapter")
    return count if isinstance(count, int) else None


def candidates_of(library: Library, base: str) -> str:
    """Where the candidates of a library go by default."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", os.path.basename(os.fspath(base).rstrip("/\\"))).strip("-.")
    return f"{library.root.rstrip('/')}-{name or 'base'}"


def read(library: Library, refs: Sequence[str] | None) -> tuple[list[Old], dict[str, str]]:
    """The tasks of these refs, or the newest version of every name; and why some cannot be trained again."""
    entries = library.list() if refs is None else [library.find(ref) for ref in refs]
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RunError(f"{twice} is given twice")
    olds: list[Old] = []
    problems: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):  # a resumed training must have the same order
        try:
            olds.append(Old(entry, _run(entry)))
        except InlayError as error:
            problems[entry.name] = str(error)
    return olds, problems


def _run(entry: Entry) -> Run:
    config = dict(card_text.section(entry.card, "config"))
    if entry.members:
        raise RunError("it is an ensemble; its members can be trained again if they have names of their own")
    if not config:
        raise RunError("its card does not say how it was trained; it was made elsewhere")
    if str(config.get("data", "")).endswith("rows given as objects"):
        raise RunError(f"its data was {config['data']}, not in a file")
    if config.get("teacher"):
        raise RunError(f"it learned from {config['teacher']}, which belongs to the same base; train it with a new one")
    return from_config(config, name=entry.name)


def is_on(entry: Entry, base: Base) -> bool:
    """Whether an adapter belongs to this base."""
    identity = str(entry.card["base"])
    return identity == base.identity("+pooler:" in identity)


def finished(candidates: Library, olds: Iterable[Old], base: Base) -> dict[str, Entry]:
    """The candidates that are trained already, on this base, with these settings and this data: by name."""
    candidates_by_name = {entry.name: entry for entry in candidates.list(damaged=[])}
    entries = {}
    for old in olds:
        entry = candidates_by_name.get(old.entry.name)
        if entry is None or not is_on(entry, base):
            continue
        same_run = restated(card_text.section(entry.card, "config")) == restated(old.run.written())
        if same_run and entry.card.get("data") == old.entry.card.get("data"):
            entries[entry.name] = entry
    return entries


def begun(checkpoint: Checkpoint) -> list[str]:
    """The tasks of a training that was stopped; none if there was no such training."""
    if not checkpoint.exists:
        return []
    state, _ = checkpoint.read()
    return [str(job["config"].get("name")) for job in state["jobs"]]


def prepare_all(
    olds: Iterable[Old], host: Host, stopped: Sequence[str], problems: dict[str, str]
) -> list[tuple[Old, Prepared]]:
    """Read the data of these tasks; what is wrong with them is added to `problems`.

    Args:
        stopped: the tasks of a training that is resumed, which can have no others.
    """
    prepared = []
    for old in olds:
        try:
            data = prepare(old.run, host)
            _refuse_other_data(old, data)
            if stopped and old.entry.name not in stopped:
                raise RunError("it is not part of the interrupted run; try again when that has finished")
            prepared.append((old, data))
        except InlayError as error:
            problems[old.entry.name] = str(error)
    return prepared


def _refuse_other_data(old: Old, data: Prepared) -> None:
    known = old.entry.card.get("data")
    if known != data.data_hash:
        was, now = card_text.short(known), card_text.short(data.data_hash)
        raise RunError(f"its data has changed since it was trained ({data.run.data}: {now}, was {was or 'not said'})")


def keep(result: Result, old: Old, candidates: Library, base: Base, half: bool = False) -> Entry:
    """Put a result into the candidates."""
    adapter = result.adapter.to("float16") if half else result.adapter
    origin = {"ref": old.entry.ref, "sha256": old.entry.sha256, "base_name": card_text.base_name(old.entry.card)}
    facts = {**card_facts(base, result.parameters, result.seconds), _FROM: origin}
    return candidates.put(adapter, old.entry.name, **facts)


def switch(library: Library, candidates: Library, change: Change, aliases: Sequence[str] = ()) -> Change:
    """Make a candidate the newest version of its name, and move these aliases to it where the name has them."""
    assert change.new is not None
    facts = {key: value for key, value in change.new.card.items() if key not in cards.OWN and key != "history"}
    facts[_SWITCHED] = facts.pop(_FROM, None) or {"ref": change.old.ref}
    entry = library.put(candidates.read(change.new), change.old.name, parents=change.new.parents, **facts)
    move_aliases(library, entry, aliases)
    return replace(change, switched=entry)


def move_aliases(library: Library, entry: Entry, aliases: Sequence[str]) -> None:
    """Point these aliases to a version; a name that lacks one of them does not get it."""
    for alias in library.aliases(entry.name).keys() & set(aliases):
        library.alias(entry.name, alias, entry.version)


@dataclass(frozen=True)
class Undo:
    """A switched version that can be taken back."""

    entry: Entry
    aliases: Mapping[str, int]
    """Aliases that point to it, and where they pointed before."""

    def do(self, library: Library) -> str:
        """Take it back; returns what its plain name means now."""
        for alias, version in self.aliases.items():
            library.alias(self.entry.name, alias, version)
        library.remove(self.entry.ref)
        return library.find(self.entry.name).ref


def undoable(library: Library, names: Sequence[str] | None) -> tuple[list[Undo], dict[str, str]]:
    """Which of these names, or of all, were switched and not changed since; and why others cannot be taken back."""
    entries = library.list() if names is None else [library.find(name) for name in names]
    undos: list[Undo] = []
    problems: dict[str, str] = {}
    for entry in entries:
        if not card_text.section(entry.card, _SWITCHED):
            if names is not None:
                problems[entry.name] = f"{entry.ref} was not put there by a switch"
            continue
        try:
            if len(library.versions(entry.name)) == 1:
                raise LibraryError(f"there is no version before {entry.ref}")
            undos.append(Undo(entry, _before(library, entry)))
        except LibraryError as error:
            problems[entry.name] = str(error)
    return undos, problems


def _before(library: Library, entry: Entry) -> dict[str, int]:
    versions = set(library.versions(entry.name))
    version_before: dict[str, int] = {}
    for alias in (alias for alias, version in library.aliases(entry.name).items() if version == entry.version):
        moves = [move.version for move in library.alias_history(entry.name, alias)]
        earlier = [version for version in moves if version in versions and version != entry.version]
        if not earlier:
            raise LibraryError(f"{entry.name}@{alias} never pointed to another version; move or remove it first")
        version_before[alias] = earlier[-1] or 0
    return version_before
