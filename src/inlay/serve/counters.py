"""What an engine counts, and the listeners that it calls after every batch."""

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

    def listen(self, listener: Callable[[BatchDone], None]) -> None:
        """Call this after each batch, in the engine's thread."""
        self._listeners.append(listener)

    def add(self, **counts: float) -> None:
        """Add to these counts."""
        with self._lock:
            for name, number in counts.items():
                setattr(self._counts, name, getattr(self._counts, name) + number)

    def done(self, batch: BatchDone) -> None:
        """Count a batch, and call all listeners; one that fails does not stop the others."""
        self.add(batches=1, rows=batch.rows, tokens=batch.tokens, seconds=batch.seconds)
        self.count(batch.answers)
        for listener in self._listeners:
            try:
                listener(batch)
            except Exception:
                _log.exception("a listener failed")

    def count(self, answers: Sequence[Answered]) -> None:
        """Count answers and errors, whether the asks ran or not."""
        with self._lock:
            for answered in answers:
                self._count(answered)

    def counts(self) -> Counts:
        """A copy of the counts."""
        with self._lock:
            return copy.deepcopy(self._counts)

    def _count(self, answered: Answered) -> None:
        task = self._counts.tasks.setdefault(answered.task, TaskCounts())
        if answered.error is not None:
            self._counts.errors += 1
            task.errors += 1
            return
        self._counts.answers += 1
        task.answers += 1
        task.seconds += answered.seconds
        for label in answered.labels:
            task.labels[label] = task.labels.get(label, 0) + 1
        if answered.score is not None:
            task.confidence += answered.score
            task.scored += 1


def labels_of(answer: Answer) -> list[str]:
    """The labels in an answer: one, several, or those of tagged spans."""
    if "spans" in answer:
        return [str(span["label"]) for span in answer["spans"]]
    label: Any = answer.get("label")
    return [] if label is None else [str(name) for name in label] if isinstance(label, list) else [str(label)]
