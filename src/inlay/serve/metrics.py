"""What Prometheus reads: latencies and batches as they are heard of, everything else from the engine's own counts.

Shares of labels and the mean confidence of a task are where drift shows: `inlay_labels_total` and
`inlay_confidence_sum / inlay_confidence_count` over time. The registry is the service's own, so several services in one
process do not meet. Only names of tasks that were served become labels, never what a caller makes up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from inlay.serve.engine_types import BatchDone

if TYPE_CHECKING:
    from inlay.serve.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = tuple(2**n for n in range(4, 17))
_COUNTERS = {
    "batches": ("batches", "Batches that ran."),
    "batch_seconds": ("seconds", "Seconds in the model."),
    "late": ("late", "Requests whose deadline passed before they ran."),
    "cancelled": ("cancelled", "Requests that were cancelled before they ran."),
    "refused": ("refused", "Requests refused because the queue was full."),
    "paging_hits": ("hits", "Requests whose adapter was in the bank."),
    "paging_misses": ("misses", "Requests whose adapter had to be loaded first."),
    "paging_reads": ("reads", "Adapters read from the library."),
    "paging_read_seconds": ("read_seconds", "Seconds spent reading adapters."),
    "paging_loads": ("loads", "Adapters put into the bank."),
    "paging_load_seconds": ("load_seconds", "Seconds spent putting adapters into the bank."),
    "paging_evictions": ("evictions", "Adapters evicted to make room for others."),
}
"""Name -> field of the engine's counts, and its meaning."""
_GAUGES = {
    "queue_items": ("waiting", "Asks that wait."),
    "resident_adapters": ("resident", "Adapters in the bank."),
    "remembered_adapters": ("remembered", "Adapters in main memory, outside the bank."),
}


class Metrics:
    """The measurements of one service."""

    def __init__(self, engine: Engine):
        self.registry = CollectorRegistry()
        self.registry.register(_Measured(functools.partial(_counted, engine)))
        own = self.registry
        self.calls = Counter("inlay_calls", "Calls by path and status.", ["path", "status"], registry=own)
        self.latency = Histogram(
            "inlay_answer_seconds", "Seconds from request to answer.", ["task"], buckets=_SECONDS, registry=own
        )
        self.rows = Histogram("inlay_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=own)
        self.tokens = Histogram("inlay_batch_tokens", "Tokens of a batch.", buckets=_TOKENS, registry=own)
        self.everyone: Callable[[], Mapping[str, Sequence[Metric]]] | None = None
        """Where the service has replicas: name -> what that one has measured."""
        self._latencies: dict[str, Histogram] = {}
        engine.listen(self.heard)

    def count(self, path: str, status: int) -> None:
        """A call is over; its path is that of a route, so there are few."""
        self.calls.labels(path, str(status)).inc()

    def heard(self, batch: BatchDone) -> None:
        """A batch is done. This runs in the engine's thread."""
        self.rows.observe(batch.rows)
        self.tokens.observe(batch.tokens)
        for answer in (one for one in batch.answers if one.error is None):
            if answer.task not in self._latencies:
                self._latencies[answer.task] = self.latency.labels(answer.task)
            self._latencies[answer.task].observe(answer.seconds)

    def page(self) -> bytes:
        """Everything, in Prometheus' text format; of all replicas, if there are several."""
        return generate_latest(self.registry if self.everyone is None else gathered(self.everyone()))

    def families(self) -> list[Metric]:
        """Everything, to be sent elsewhere."""
        return list(self.registry.collect())


def gathered(measured: Mapping[str, Sequence[Metric]]) -> CollectorRegistry:
    """What several replicas have measured, told apart by a label."""
    found: dict[str, Metric] = {}
    for replica, families in measured.items():
        for own in families:
            family = found.setdefault(own.name, Metric(own.name, own.documentation, own.type))
            family.samples += [one._replace(labels={**one.labels, "replica": replica}) for one in own.samples]
    registry = CollectorRegistry()
    registry.register(_Measured(found.values))
    return registry


class _Measured(Collector):
    """What others measure, read when it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Metric]]):
        self.read = read

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        return self.read()


def _counted(engine: Engine) -> Iterator[Metric]:
    """What the engine counts itself."""
    counts = engine.counts()
    for name, (field, help) in _COUNTERS.items():
        yield CounterMetricFamily(f"inlay_{name}", help, value=getattr(counts, field))
    for name, (field, help) in _GAUGES.items():
        yield GaugeMetricFamily(f"inlay_{name}", help, value=getattr(counts, field))
    yield GaugeMetricFamily("inlay_ready", "Whether it answers.", value=int(engine.ready))
    states = GaugeMetricFamily("inlay_tasks", "Tasks served, by where their adapter is.", labels=["state"])
    served = engine.tasks()
    for state in ("bank", "memory", "disk"):
        states.add_metric([state], sum(one.state == state for one in served))
    yield states
    answers = CounterMetricFamily("inlay_answers", "Answers.", labels=["task"])
    errors = CounterMetricFamily("inlay_errors", "Asks that failed.", labels=["task"])
    labels = CounterMetricFamily("inlay_labels", "Answers by their label.", labels=["task", "label"])
    confidence = SummaryMetricFamily("inlay_confidence", "Scores of answers.", labels=["task"])
    for task, own in counts.tasks.items():
        answers.add_metric([task], own.answers)
        errors.add_metric([task], own.errors)
        confidence.add_metric([task], count_value=own.scored, sum_value=own.confidence)
        for label, number in (own.labels or {}).items():
            labels.add_metric([task, label], number)
    yield from (answers, errors, labels, confidence)
