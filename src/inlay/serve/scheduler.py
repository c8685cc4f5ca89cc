"""What runs next: a mixed batch, or a pass of one adapter that must run alone.

While both wait, passes of one adapter get a third of the time: every second of mixed batches earns them half a second.
These passes are small, so that others do not wait long.

Not safe in threads: the engine holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inlay.serve.fair_queue import FairQueue
from inlay.serve.version import Piece, Version

_ALONE = 4
"""A pass of one adapter has at most a batch's tokens divided by this."""
_CREDIT = 0.1
"""Seconds that may be saved up."""
_QUANTUM = 64
"""Tokens of a task's turn; fewer in a small batch, so that several tasks fit."""


class Scheduler:
    """The queue, and what runs next."""

    def __init__(self, room: int, tokens: int, in_bank: Callable[[str], bool]):
        """
        Args:
            room: asks that may wait.
            tokens: of one batch.
            in_bank: whether an adapter is in the bank.
        """
        self.queue: FairQueue[Version, Piece] = FairQueue(room, max(1, min(_QUANTUM, tokens // 8)))
        self.last = 0.0
        """Seconds of the last batch."""
        self._tokens, self._in_bank = tokens, in_bank
        self._credit = 0.0
        self._rate = 0.0

    def take(self) -> list[Piece]:
        """The next batch."""
        budget = max(1, self._tokens // _ALONE)
        pieces = self.queue.take(budget, self._alone, 1) if self._credit > 0 else []
        return pieces or self.queue.take(self._tokens, self._together) or self.queue.take(budget, self._alone, 1)

    def record(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Note how long a batch took. A pass of one adapter spends credit only while mixed batches wait."""
        rate = sum(piece.tokens for piece in pieces) / max(seconds, 1e-6)
        self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate
        self.last = seconds
        if not pieces[0].item.version.alone:
            self._credit = min(_CREDIT, self._credit + seconds / 2)
        elif any(not version.alone for version in self.queue.flows):
            self._credit -= seconds

    def seconds(self) -> float:
        """An estimate of the seconds that the whole queue will take."""
        return min(60.0, max(0.05, self.queue.cost / self._rate)) if self._rate else 1.0

    def _together(self, version: Version) -> bool:
        return not version.alone and all(map(self._in_bank, version.refs))

    def _alone(self, version: Version) -> bool:
        return version.alone and all(map(self._in_bank, version.refs))
