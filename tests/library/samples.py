"""Small adapters, and ways to make the operating system fail at a chosen moment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import inlay
from inlay.library.library import Library

STEPS = ("os.mkdir", "tempfile.mkstemp", "os.fdopen", "os.fsync", "os.chmod", "os.link", "os.replace", "os.unlink")
"""Every call that changes the disk when a library writes."""
_MODULES = {"os": os, "tempfile": tempfile}


def adapter(value: float = 0.0, **changes: Any) -> inlay.Adapter:
    made = inlay.Adapter(
        "lora:rank=2",
        "sha256:abc",
        {"a": torch.full((3, 2), value)},
        7,
        "linear",
        "cls",
        ("no", "yes"),
        "tone",
        "classification",
        {"metrics": {"validation": {"accuracy": 0.5}}, "history": [{"step": 1}]},
    )
    return replace(made, **changes)


def value(library: Library, ref: str) -> float:
    return float(library.get(ref).tensors["a"][0, 0])


def files(library: Library) -> dict[str, bytes]:
    found = sorted(p for p in library.local.rglob("*") if p.is_file())
    return {str(p.relative_to(library.local)): p.read_bytes() for p in found}


def blob(library: Library, ref: str = "tone") -> Path:
    return library.local / "blobs" / f"{library.find(ref).sha256}.safetensors"


def card(library: Library, version: int = 1, name: str = "tone") -> Path:
    return library.local / "adapters" / name / f"{version}.json"


@contextmanager
def at_step(number: int, act: Callable[[str], None]) -> Iterator[list[str]]:
    """Run `act` in the place of the call of this number (from 1) that changes the disk; yields the calls so far."""
    seen: list[str] = []
    real = {}

    def patched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            seen.append(name)
            if len(seen) == number:
                act(name)
            return call(*arguments, **options)

        return counted

    for name in STEPS:
        module, _, attribute = name.partition(".")
        real[name] = getattr(_MODULES[module], attribute)
        setattr(_MODULES[module], attribute, patched(name, real[name]))
    try:
        yield seen
    finally:
        for name, call in real.items():
            module, _, attribute = name.partition(".")
            setattr(_MODULES[module], attribute, call)
