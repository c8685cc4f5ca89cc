"""Variants of an adapter, loaded beside it for as long as they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from inlay.engine.host import Host
from inlay.engine.loaded import Loaded


@contextmanager
def loaded_variants(host: Host, variants: Mapping[str, tuple[Loaded, Mapping[str, Tensor]]]) -> Iterator[list[str]]:
    """Load variants, each a changed result of `Host.fitted`, and unload them in the end; gives their names in order."""
    names: list[str] = []
    try:
        for name, (record, tensors) in variants.items():
            host.enter(name, record, tensors)
            names.append(name)
        yield names
    finally:
        for name in names:
            host.unload(name)
