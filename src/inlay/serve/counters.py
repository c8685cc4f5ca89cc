"""What an engine counts, and who hears of every batch."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from inlay.serve.engine_types import Answer, Answered, BatchDone, Counts, TaskCounts

_log = logging.getLogger(__name__)


class Counters:
    """Sums since the start; safe in threads."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._listeners: list[Callable[[BatchDone], None]] = []
        self._lock = threading.Lock()

    def listen(self, heard: Callable[[BatchDone], None]) -> None:
        """Call this after each batch, in the engine's thread."""
        self._listeners.append(heard)

    def add(self, **counts: float) -> None:
        """More of some of the counts."""
        with self._lock:
            for name, number in counts.items():
                setattr(self._counts, name, getattr(self._counts, name) + number)

    def done(self, batch: BatchDone) -> None:
        """A batch is done: count it, and tell everyone; one who fails disturbs nobody."""
        self.add(batches=1, rows=batch.rows, tokens=batch.tokens, seconds=batch.seconds)
        self.count(batch.answers)
        for heard in self._listeners:
            try:
                heard(batch)
            except Exception:
                _log.exception("a listener failed")

    def count(self, answers: Sequence[Answered]) -> None:
        """Count what became of asks, whether they ran or not."""
        with self._lock:
            for one in answers:
                self._count(one)

    def counts(self) -> Counts:
        """A copy of them."""
        with self._lock:
            return copy.deepcopy(self._counts)

    def _count(self, one: Answered) -> None:
        task = self._counts.tasks.setdefault(one.task, TaskCounts())
        if one.error is not None:
            self._counts.errors += 1
            task.errors += 1
            return
        self._counts.answers += 1
        task.answers += 1
        task.seconds += one.seconds
        for label in one.labels:
            task.labels[label] = task.labels.get(label, 0) + 1
        if one.score is not None:
            task.confidence += one.score
            task.scored += 1


def labels_of(answer: Answer) -> list[str]:
    """The labels in an answer: one, several, or those of tagged spans."""
    if "spans" in answer:
        return [str(span["label"]) for span in answer["spans"]]
    said: Any = answer.get("label")
    return [] if said is None else [str(one) for one in said] if isinstance(said, list) else [str(said)]
