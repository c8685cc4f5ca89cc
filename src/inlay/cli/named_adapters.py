"""The adapters that a command names: in a library, on a base that is loaded here; or behind a running service.

Both sides look the same: something with names that answers as `Host.predict` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inlay import registry
from inlay.base.places import locate
from inlay.cli.options import listed
from inlay.config import split_spec
from inlay.errors import AdapterError, InlayError, LibraryError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Entry, Library
    from inlay.tasks import Answer, Example, Task


@dataclass(frozen=True)
class NamedAdapter:
    """What is known of an adapter without torch."""

    version: int
    sha256: str
    spec: str
    """Of its task."""
    kind: str
    """The task of this package that reads the same data."""
    labels: Sequence[str]
    about: Mapping[str, Any]
    """Its card, or what a service tells of it."""
    entry: Entry | None = None
    """None if a service has it."""

    def task(self) -> Task:
        """How to read rows and decode answers; imports torch."""
        from inlay.tasks import parse

        return parse(self.spec)


def open_library(root: str | None) -> Library:
    """The library to read from; a folder that is named must exist."""
    from inlay.library.library import Library
    from inlay.library.storage import Folder

    store = Library(root)
    if root is not None and isinstance(store.storage, Folder) and not store.storage.root.exists():
        raise LibraryError(f"--library {root}: there is no such folder")
    return store


def versions_of(library: Library, name: str) -> dict[int, list[str]]:
    """The versions of a name, ascending, with their aliases."""
    named = library.aliases(name, skip_damaged=True)
    return {v: [alias for alias in sorted(named) if named[alias] == v] for v in library.versions(name)}


def document_of(entry: Entry) -> dict[str, Any]:
    """An adapter as JSON: its card, and its aliases."""
    return {**entry.card, "aliases": list(entry.aliases)}


def kind_of(spec: str) -> str:
    """The kind of a task; imports torch only for a task from another package."""
    name = split_spec(spec)[0]
    if name in registry.tasks.own_names():
        return name
    registry.tasks.check(name)
    return str(registry.tasks.find(name).kind)


class Predictor(Protocol):
    """What answers, in three steps that different threads may take: a host, or a service."""

    def encode(self, requests: Sequence[tuple[str, Example]]) -> Any:
        """What `run` takes."""

    def run(self, encoded: Any) -> Any:
        """The step that needs the model."""

    def decode(self, encoded: Any, ran: Any) -> Sequence[Answer]:
        """The answers, as `Host.predict` gives them."""


class HostPredictor:
    """A host that answers."""

    def __init__(self, host: Host, how: Mapping[str, Any]):
        """
        Args:
            how: the options of `Host.predict`.
        """
        from inlay.base.load import load_tokenizer
        from inlay.engine import predict
        from inlay.engine.answer_options import AnswerOptions

        self._host, self._options, self._steps = host, AnswerOptions(**how), predict
        self._tokenizer = copy.deepcopy(load_tokenizer(host.base))  # truncation is its state: this thread has its own

    def encode(self, requests: Sequence[tuple[str, Example]]) -> Any:
        """Rows of token ids."""
        return self._steps.encode(self._host, requests, self._tokenizer)

    def run(self, encoded: Any) -> Any:
        """Logits."""
        return self._steps.run(self._host, encoded)

    def decode(self, encoded: Any, ran: Any) -> Sequence[Answer]:
        """Answers."""
        return self._steps.decode(self._host, encoded, ran, self._options)


def find_in_library(library: Library, names: str, before: Sequence[str]) -> dict[str, NamedAdapter]:
    """The adapters by name, in order; a resumed command takes the versions that it began with."""
    chosen: dict[str, NamedAdapter] = {}
    for name, ref in _refs(names, before):
        entry = library.find(ref)
        card = entry.card
        kind = kind_of(card["task"]) if card["task"] else ""
        if card["head"] is None or kind in ("", "mlm"):
            raise AdapterError(f"{name} cannot predict: it has no head that gives answers")
        chosen[name] = NamedAdapter(entry.version, entry.sha256, card["task"], kind, card["labels"], card, entry)
    _check_one_base({name: adapter.about for name, adapter in chosen.items()})
    return chosen


def _check_one_base(cards: Mapping[str, Mapping[str, Any]]) -> None:
    bases = {card["base"].partition("+")[0]: name for name, card in cards.items()}
    if len(bases) > 1:
        both = list(bases.items())[:2]
        names = ", ".join(f"{cards[name].get('base_name', '')} {base}".strip() for base, name in both)
        raise AdapterError(f"{both[0][1]} and {both[1][1]} belong to different bases ({names}); run them one at a time")


def base_of(base: str | None, entries: Sequence[Entry]) -> str | None:
    """The given base, else the one that a card names; a folder must exist."""
    base = base or next((str(entry.card["base_name"]) for entry in entries if entry.card.get("base_name")), None)
    if base is not None:
        locate(base)
    return base


def faster_weights(entries: Sequence[Entry]) -> str | None:
    """The form of weights that is faster for much work on a CPU; None elsewhere, and if an adapter changes weights."""
    import torch

    from inlay.bank.delta import WeightMethod, parse
    from inlay.base.prepack import can_prepack

    if torch.cuda.is_available() or not can_prepack():
        return None
    try:
        cards = [card for entry in entries for card in entry.card.get("members") or [entry.card]]
        methods = [parse(spec) for spec in {str(card.get("method")) for card in cards}]
    except InlayError:  # loading it reports this
        return None
    return None if any(isinstance(method, WeightMethod) for method in methods) else "prepack"


def host_with(base: str | None, weights: str | None, library: Library, chosen: Mapping[str, Entry], **how: Any) -> Host:
    """The base with the adapters on it, each under its name here."""
    _check_one_base({name: entry.card for name, entry in chosen.items()})
    adapters = {name: library.read(entry) for name, entry in chosen.items()}
    from inlay.engine.host import Host

    host = Host(base_of(base, list(chosen.values())), weights=weights, **how)
    for name, adapter in adapters.items():
        try:
            host.load(adapter, name)
        except AdapterError as error:
            hint = "" if base else "; if it belongs to another base, name that with --base"
            raise AdapterError(f"{name}: {error}{hint}") from None
    return host


def find_in_service(
    url: str, names: str, before: Sequence[str], how: Mapping[str, Any]
) -> tuple[dict[str, NamedAdapter], Callable[[], Predictor]]:
    """The adapters of a service, and what makes its predictor; it answers only with the versions that it serves."""
    from inlay.client import Client, ServiceError

    chosen: dict[str, NamedAdapter] = {}
    for name, ref in _refs(names, before):
        with Client(url) as client:
            try:
                card = client.task(name)
            except ServiceError as error:
                if error.kind != "unknown_task":
                    raise
                raise AdapterError(str(error)) from None
        version = ref.partition("@")[2]
        if "@" not in name and version and int(version) != card["version"]:
            raise AdapterError(f"{url} serves {name} at version {card['version']} now; this run began with {version}")
        facts = {key: card[key] for key in ("columns", "members") if card.get(key)}
        kind, labels = kind_of(card["task"]), card.get("labels") or ()
        chosen[name] = NamedAdapter(card["version"], card["sha256"], card["task"], kind, labels, facts)
    return chosen, lambda: _ServicePredictor(url, {name: adapter.kind for name, adapter in chosen.items()}, how)


@dataclass(frozen=True)
class _ServicePredictor:
    """A running service instead of a host."""

    url: str
    kinds: Mapping[str, str]
    """Adapter -> the kind of its task."""
    how: Mapping[str, Any]

    def encode(self, requests: Sequence[tuple[str, Example]]) -> Any:
        """Nothing to do: the service encodes."""
        return requests

    def run(self, encoded: Any) -> Any:
        """Answers as a host gives them; the first that failed is raised."""
        from inlay.client import Client
        from inlay.engine.answer_options import AnswerOptions

        if not encoded:
            return []
        options = AnswerOptions(**self.how)
        options_of_task = {name: {} if options.fits(kind) else {"threshold": None} for name, kind in self.kinds.items()}
        with Client(self.url) as client:
            items = [{"task": name, **_texts_of(example), **options_of_task[name]} for name, example in encoded]
            answers = client.predict(items, **self.how)
        for (name, example), answer in zip(encoded, answers, strict=True):
            if "error" in answer:
                raise InlayError(f"{example.place or name}: {answer['error']['message']}")
            answer.pop("version", None)
            answer["task"] = name
        return answers

    def decode(self, encoded: Any, ran: Any) -> list[Answer]:
        """Nothing to do: the service decodes."""
        answers: list[Answer] = ran
        return answers


def _texts_of(example: Example) -> dict[str, Any]:
    if example.words:
        return {"tokens": list(example.words)}
    return {"text": example.text} | ({} if example.pair is None else {"pair": example.pair})


def _refs(names: str, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every name, and the reference to look up: the version that a resumed command began with."""
    versions = {name: version for name, version, _ in (line.split() for line in before)}
    for name in split_names(names):
        yield name, f"{name}@{versions[name]}" if name in versions and "@" not in name else name


def split_names(text: str) -> list[str]:
    """The names of adapters, none of them twice."""
    names = listed(text)
    if not names:
        raise AdapterError(f"{text!r} names no adapter; expected one or several, such as sms or sms,topic@2")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AdapterError(f"{twice} is named twice")
    return names
