"""Metrics for Prometheus: latencies and sizes of batches as they come, everything else from the engine's counts.

Drift shows in a task's shares of labels and its mean confidence: `inlay_labels_total` and
`inlay_confidence_sum / inlay_confidence_count` over time. Each service has its own registry, so several can run in one
process. Only names of served tasks become labels, never names that a caller makes up.
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
"""Name -> field of the engine's counts, and help text."""
_GAUGES = {
    "queue_items": ("waiting", "Asks that wait."),
    "resident_adapters": ("resident", "Adapters in the bank."),
    "remembered_adapters": ("remembered", "Adapters in main memory, outside the bank."),
}


class Metrics:
    """The measurements of one service."""

    def __init__(self, engine: Engine):
        self.registry = CollectorRegistry()
        self.registry.register(_Source(functools.partial(_engine_metrics, engine)))
        registry = self.registry
        self.calls = Counter("inlay_calls", "Calls by path and status.", ["path", "status"], registry=registry)
        self.latency = Histogram(
            "inlay_answer_seconds", "Seconds from request to answer.", ["task"], buckets=_SECONDS, registry=registry
        )
        self.rows = Histogram("inlay_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=registry)
        self.tokens = Histogram("inlay_batch_tokens", "Tokens of a batch.", buckets=_TOKENS, registry=registry)
        self.everyone: Callable[[], Mapping[str, Sequence[Metric]]] | None = None
        """For a service of replicas: gives name -> what that replica has measured."""
        self._latencies: dict[str, Histogram] = {}
        engine.listen(self.record)

    def count(self, path: str, status: int) -> None:
        """Count a call that is over; its path is that of a route, so there are few."""
        self.calls.labels(path, str(status)).inc()

    def record(self, batch: BatchDone) -> None:
        """Note a batch that is done. This runs in the engine's thread."""
        self.rows.observe(batch.rows)
        self.tokens.observe(batch.tokens)
        for answer in (a for a in batch.answers if a.error is None):
            if answer.task not in self._latencies:
                self._latencies[answer.task] = self.latency.labels(answer.task)
            self._latencies[answer.task].observe(answer.seconds)

    def page(self) -> bytes:
        """All metrics, of all replicas, in Prometheus' text format."""
        return generate_latest(self.registry if self.everyone is None else gathered(self.everyone()))

    def families(self) -> list[Metric]:
        """All metrics of this service, to be sent elsewhere."""
        return list(self.registry.collect())


def gathered(measured: Mapping[str, Sequence[Metric]]) -> CollectorRegistry:
    """What several replicas have measured, with the replica as a label."""
    families: dict[str, Metric] = {}
    for replica, metrics in measured.items():
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [s._replace(labels={**s.labels, "replica": replica}) for s in metric.samples]
    registry = CollectorRegistry()
    registry.register(_Source(families.values))
    return registry


class _Source(Collector):
    """Metrics that are kept elsewhere, read when they are asked for."""

    def __init__(self, read: Callable[[], Iterable[Metric]]):
        self.read = read

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self.read()


def _engine_metrics(engine: Engine) -> Iterator[Metric]:
    """The engine's own counts."""
    counts = engine.counts()
    for name, (field, help) in _COUNTERS.items():
        yield CounterMetricFamily(f"inlay_{name}", help, value=getattr(counts, field))
    for name, (field, help) in _GAUGES.items():
        yield GaugeMetricFamily(f"inlay_{name}", help, value=getattr(counts, field))
    yield GaugeMetricFamily("inlay_ready", "Whether it answers.", value=int(engine.ready))
    states = GaugeMetricFamily("inlay_tasks", "Tasks served, by where their adapter is.", labels=["state"])
    served = engine.tasks()
    for state in ("bank", "memory", "disk"):
        states.add_metric([state], sum(task.state == state for task in served))
    yield states
    answers = CounterMetricFamily("inlay_answers", "Answers.", labels=["task"])
    errors = CounterMetricFamily("inlay_errors", "Asks that failed.", labels=["task"])
    labels = CounterMetricFamily("inlay_labels", "Answers by their label.", labels=["task", "label"])
    confidence = SummaryMetricFamily("inlay_confidence", "Scores of answers.", labels=["task"])
    for name, task in counts.tasks.items():
        answers.add_metric([name], task.answers)
        errors.add_metric([name], task.errors)
        confidence.add_metric([name], count_value=task.scored, sum_value=task.confidence)
        for label, number in task.labels.items():
            labels.add_metric([name, label], number)
    yield from (answers, errors, labels, confidence)
