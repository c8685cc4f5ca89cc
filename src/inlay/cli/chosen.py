"""The adapters that a command asks by name: in a library, on a base that is loaded here; or behind a running service.

Both sides look the same: something with names, whose `predict` answers as `Host.predict` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inlay.errors import AdapterError, InlayError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.adapter import Adapter
    from inlay.library.library import Library
    from inlay.tasks import Answer, Example, Task


@dataclass(frozen=True)
class Chosen:
    """One adapter as it was asked for."""

    version: int
    sha256: str
    task: Task
    about: Mapping[str, Any]
    """How it came to be."""
    adapter: Adapter | None = None
    """None if a service has it."""


class Answering(Protocol):
    """What answers: a host, or a service."""

    @property
    def names(self) -> Sequence[str]:
        """The adapters that can be asked."""

    def predict(
        self, requests: Sequence[tuple[str, Example]], *, top_k: int | None, threshold: float | None, raw: bool
    ) -> list[Answer]:
        """As `Host.predict`."""


def find(library: Library, names: str, before: Sequence[str]) -> dict[str, Chosen]:
    """The adapters by the names asked, in order; a resumed command takes the versions that it began with."""
    from inlay.tasks import parse

    chosen: dict[str, Chosen] = {}
    for name, ref in _refs(names, before):
        entry = library.find(ref)
        adapter = library.get(f"{entry.name}@{entry.version}")
        task = parse(adapter.task) if adapter.task else None
        if task is None or adapter.head is None or task.kind == "mlm":
            raise AdapterError(f"{name} cannot be asked: it has no head that gives answers")
        chosen[name] = Chosen(entry.version, entry.sha256, task, adapter.about, adapter)
    bases = {one.adapter.base.partition("+")[0]: name for name, one in chosen.items() if one.adapter is not None}
    if len(bases) > 1:
        first, second = list(bases.items())[:2]
        raise AdapterError(
            f"{first[1]} and {second[1]} belong to different bases ({first[0]}, {second[0]}); ask them one at a time"
        )
    return chosen


def host_with(base: str | None, weights: str | None, chosen: Mapping[str, Chosen]) -> Host:
    """The base with the adapters on it, each under the name it was asked by."""
    from inlay.engine.host import Host

    adapters = {name: one.adapter for name, one in chosen.items() if one.adapter is not None}
    said = next((one.base_name for one in adapters.values() if one.base_name), None)
    host = Host(base or said, weights=weights)
    for name, adapter in adapters.items():
        try:
            host.load(adapter, name)
        except AdapterError as error:
            hint = "" if base else "; if it belongs to another base, name that with --base"
            raise AdapterError(f"{name}: {error}{hint}") from None
    return host


def find_there(url: str, names: str, before: Sequence[str]) -> tuple[dict[str, Chosen], Callable[[], Answering]]:
    """The same, of a service, and what gives that; it answers with the versions that it serves, and no others."""
    from inlay.client import Client, ServiceError
    from inlay.tasks import parse

    chosen: dict[str, Chosen] = {}
    for name, ref in _refs(names, before):
        with Client(url) as client:
            try:
                card = client.task(name)
            except ServiceError as error:
                if error.kind != "unknown_task":
                    raise
                raise AdapterError(f"{url}: {error}") from None
        which = ref.partition("@")[2]
        if "@" not in name and which and int(which) != card["version"]:
            raise AdapterError(f"{url} serves {name} at version {card['version']} now; this began with {which}")
        columns = {"columns": card["columns"]} if card.get("columns") else {}
        chosen[name] = Chosen(card["version"], card["sha256"], parse(card["task"]), columns)
    return chosen, lambda: _Service(url, tuple(chosen))


@dataclass(frozen=True)
class _Service:
    """A running service in the place of a host."""

    url: str
    names: Sequence[str]

    def predict(
        self, requests: Sequence[tuple[str, Example]], *, top_k: int | None, threshold: float | None, raw: bool
    ) -> list[Answer]:
        """Answers as a host gives them; the first that failed is raised."""
        from inlay.client import Client

        asked = [{"task": name, **_given(example, name)} for name, example in requests]
        with Client(self.url) as client:
            found = client.predict(asked, top_k=top_k, threshold=threshold, raw=raw)
        for (name, example), answer in zip(requests, found, strict=True):
            if "error" in answer:
                raise InlayError(f"{example.place or name}: {answer['error']['message']}")
            answer.pop("version", None)
            answer["task"] = name
        return found


def _given(example: Example, name: str) -> dict[str, Any]:
    if example.words:
        return {"tokens": list(example.words)}
    return {"text": example.text} | ({} if example.pair is None else {"pair": example.pair})


def _refs(names: str, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every name that is asked for, and with the version that a command began with, if it did."""
    versions = {name: version for name, version, _ in (line.split() for line in before)}
    seen = set()
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name in seen:
            raise AdapterError(f"{name} is asked for twice")
        seen.add(name)
        yield name, f"{name}@{versions[name]}" if name in versions and "@" not in name else name
    if not seen:
        raise AdapterError(f"{names!r} names no adapter; expected one such as sms, or several: sms,topic@2")
