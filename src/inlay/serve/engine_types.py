"""What goes into an engine and comes out of it: asks, answers, errors, settings and counts. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from inlay.errors import InlayError
from inlay.library.names import check_alias, number_of, split_ref

Answer = dict[str, Any]
"""An answer as in `inlay predict --json`, with `version`."""


@dataclass(frozen=True)
class Ask:
    """One question to one task."""

    task: str
    """A served name; or `name@version` or `name@alias`, if that version is served."""
    given: str | tuple[str, str] | list[str] | Mapping[str, Any]
    """What `Host.predict` takes: a text, a pair of texts, a list of words, or a mapping (question, context)."""
    top_k: int | None = None
    threshold: float | str | None = None
    raw: bool = False
    long: Literal["cut", "windows", "refuse"] = "cut"
    """For a text longer than a row: do as in training (cut, by default), pool overlapping windows, or refuse. Questions
    and tagging always see the whole text, in windows."""
    explain: bool = False
    """Also `tokens` and `alpha`, one number per token, where the method has it."""
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Rows made from the same `given`, by how they are made: asks for other tasks use them too."""
    has_others: bool = False
    """Whether other tasks get the same input: a threshold then applies to those that have scores."""


class Pending(Future[Answer]):
    """An answer to come. `cancel` before it runs takes it out of the queue."""

    batch: int = 0
    """How many asks ran with this one, itself included; 0 until it has run."""
    seconds: float = 0.0
    """From being accepted to being answered."""


class Busy(InlayError):  # noqa: N818 - a state, which passes
    """The queue is full; `retry_after` says in how many seconds there may be room."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class Late(InlayError):  # noqa: N818
    """The deadline passed before the ask could run."""


class Stopped(InlayError):  # noqa: N818
    """The engine is stopping, or has stopped."""


@dataclass(frozen=True)
class Settings:
    """How an engine batches and pages."""

    tokens: int | None = None
    """Tokens of one batch; None for 4096 on the CPU, 32768 on CUDA."""
    wait_ms: float = 2.0
    """How long an idle engine waits for more asks when one comes."""
    queue: int = 1024
    """Asks that may wait. A single task gets at most four fifths of it, so that there is room for others."""
    resident: int = 256
    """Adapters in the bank."""
    remembered: int = 4096
    """Adapters in main memory, outside the bank."""
    memory: int = 4 << 30
    """At most this many bytes of them."""

    def __post_init__(self) -> None:
        least = {"queue": 1, "resident": 1, "remembered": 1, "memory": 0, "wait_ms": 0, "tokens": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise InlayError(f"{name}={value} is not valid: expected {smallest} or more")


@dataclass(frozen=True)
class Served:
    """A task as it is served now."""

    name: str
    version: int
    ref: str
    """Its name in the library: `sms@3`."""
    card: Mapping[str, Any]
    state: Literal["bank", "memory", "disk"]
    error: str | None = None
    """Why it cannot answer at the moment."""


@dataclass(frozen=True)
class Answered:
    """One ask of a batch that is done."""

    task: str
    seconds: float
    """Since it was accepted."""
    labels: Sequence[str] = ()
    """The labels of the answer: one, several, or those of tagged spans; none if it was unsure."""
    score: float | None = None
    error: str | None = None
    """The kind of error instead of an answer."""


@dataclass(frozen=True)
class BatchDone:
    """What listeners hear after each batch."""

    rows: int
    tokens: int
    seconds: float
    """In the model."""
    alone: bool
    """Whether it was a pass of one adapter that changes the base's weights."""
    answers: Sequence[Answered]


@dataclass
class TaskCounts:
    """Counts of a task since the start."""

    answers: int = 0
    errors: int = 0
    seconds: float = 0.0
    """Of all answers together, since they were accepted."""
    labels: dict[str, int] = field(default_factory=dict)
    """Answers by label."""
    confidence: float = 0.0
    """The sum of the scores."""
    scored: int = 0
    """How many answers had a score."""


@dataclass
class Counts:
    """Counts of an engine since the start."""

    waiting: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """In the model."""
    answers: int = 0
    errors: int = 0
    late: int = 0
    cancelled: int = 0
    refused: int = 0
    hits: int = 0
    """Requests whose adapter was in the bank."""
    misses: int = 0
    reads: int = 0
    """Adapters read from the library."""
    read_seconds: float = 0.0
    loads: int = 0
    """Adapters put into the bank."""
    load_seconds: float = 0.0
    evictions: int = 0
    resident: int = 0
    remembered: int = 0
    tasks: dict[str, TaskCounts] = field(default_factory=dict)


def check_served(name: str) -> str:
    """A name to serve a task under: a plain one, or `name@version` or `name@alias` for one version beside others."""
    _, suffix = split_ref(name)
    if suffix is not None and number_of(suffix) is None:
        check_alias(suffix)
    return name
