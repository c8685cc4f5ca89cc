"""Adapters in memory, ready for the bank: the most recently used ones, up to a number and a size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from torch import Tensor

from inlay.engine.host import Host
from inlay.engine.loaded import Loaded
from inlay.library.cards import Entry
from inlay.library.library import Library


@dataclass(frozen=True)
class Fitted:
    """An adapter that was read and checked."""

    record: Loaded
    tensors: dict[str, Tensor]
    entry: Entry
    bytes: int

    @classmethod
    def of(cls, host: Host, library: Library, entry: Entry) -> Fitted:
        """Read, check and unpack an adapter; the host stays as it is."""
        record, tensors = host.fitted(library.read_adapter(entry))
        return cls(record, tensors, entry, sum(t.numel() * t.element_size() for t in tensors.values()))


class AdapterCache:
    """Adapters by ref. Not safe in threads."""

    def __init__(self, most: int, size: int):
        """
        Args:
            most, size: adapters, and their bytes, at most.
        """
        self.most, self.size = most, size
        self.bytes = 0
        self._kept: OrderedDict[str, Fitted] = OrderedDict()
        """Least recently used first."""

    def __contains__(self, ref: str) -> bool:
        return ref in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, ref: str) -> Fitted:
        return self._kept[ref]

    def use(self, ref: str) -> None:
        """Mark an adapter as just used, if it is here."""
        if ref in self._kept:
            self._kept.move_to_end(ref)

    def keep(self, fitted: Fitted, stay: Container[str]) -> None:
        """Remember an adapter, and forget others to make room, but not those that must stay."""
        ref = fitted.entry.ref
        self._forget(ref)
        self._kept[ref] = fitted
        self.bytes += fitted.bytes
        while len(self._kept) > self.most or self.bytes > self.size:
            oldest = next((kept for kept in self._kept if kept not in stay and kept != ref), None)
            if oldest is None:
                break
            self._forget(oldest)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.bytes = 0

    def _forget(self, ref: str) -> None:
        if ref in self._kept:
            self.bytes -= self._kept.pop(ref).bytes
