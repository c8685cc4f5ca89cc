"""Tasks of every kind for a tiny host, in a library; and what they answer offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import tiny

import inlay
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Settings

LONG = "the film was not very good , and my book came late . " * 12
TASKS: dict[str, tuple[str, str, list[str]]] = {
    "tone": ("houlsby:size=4", "classification:temperature=3", ["bad", "fine", "good"]),
    "long": ("lora:rank=2", "classification:max_length=20,long=windows", ["no", "yes"]),
    "topics": ("adapterbias", "multilabel:temperature=2", ["book", "film", "soup"]),
    "stars": ("bitfit", "regression:mean=3,scale=1.5", ["value"]),
    "names": ("adapterbias", "tagging:temperature=1.5", ["B-LOC", "B-PER", "I-LOC", "O"]),
    "asks": ("houlsby:size=4", "qa:stride=8", ["start", "end"]),
    "whole": ("finetune", "classification", ["no", "yes"]),
    "pruned": ("diffprune", "classification", ["left", "right"]),
}
ASKS: list[tuple[str, Any]] = [
    ("asks", ("where is bob ?", "ana meets bob in lima . " + LONG)),
    ("tone", "a fine film"),
    ("names", "ana meets bob in Lima!"),
    ("whole", "we love our soup"),
    ("stars", LONG),
    ("tone", ("good soup", "bad soup")),
    ("long", LONG),
    ("names", ["ana", "xylophone", "oslo"]),
    ("pruned", "no refund"),
    ("topics", "a book for ana"),
    ("long", "yes"),
    ("names", LONG),
    ("whole", "it was awful"),
    ("asks", {"question": "who ?", "context": "bob"}),
    ("topics", {"text": "soup", "pair": "film"}),
]
Given = tuple[str, Any]


def put(library: inlay.Library, host: inlay.Host, name: str, kind: str, seed: int) -> inlay.Adapter:
    """The next version of a name in the library: a shaken adapter of one of the kinds above."""
    method, task, labels = TASKS[kind]
    host.add(name, method, task=task, labels=labels, seed=seed)
    tiny.shake(host, name, seed)
    adapter = host.adapter(name)
    host.unload(name)
    library.put(adapter)
    return adapter


def offline(host: inlay.Host, adapter: inlay.Adapter, given: Any, **how: Any) -> dict[str, Any]:
    """What an adapter answers by itself."""
    host.load(adapter)
    try:
        return host.predict([(adapter.name, given)], **how)[0]
    finally:
        host.unload(adapter.name)


@contextmanager
def running(host: inlay.Host, library: inlay.Library, tasks: Mapping[str, str], **how: Any) -> Iterator[Engine]:
    """An engine that serves tasks: name -> ref. It must leave the host as it was."""
    before = host.names
    engine = Engine(host, library, Settings(**how))
    for name, ref in tasks.items():
        engine.serve(name, ref)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)
    assert host.names == before
    assert set(host.forward.bank.slots) == {host.slot(name) for name in before}
    assert not engine.ready


def same(one: Any, other: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == pytest.approx(other, abs=1e-4, rel=1e-4)) if isinstance(one, float) else bool(one == other)


def without_version(answer: dict[str, Any]) -> dict[str, Any]:
    """As `Host.predict` has it."""
    return {key: value for key, value in answer.items() if key != "version"}
