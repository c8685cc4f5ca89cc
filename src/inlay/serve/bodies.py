"""The bodies of requests and answers, as pydantic models, which also make up the OpenAPI document.

The values of a body are counted in its bytes before it is parsed: a few megabytes of `0,0,0` would otherwise become
millions of objects. Items are checked one by one, up to their first mistake, so that a bad item fails alone: its answer
is an `{"error": ...}`, and the call succeeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json

from inlay.errors import suggest
from inlay.serve.engine_types import Ask
from inlay.serve.limits import Limits, Refused

Long = Literal["cut", "windows", "refuse"]
Input = str | tuple[str, str] | list[str] | Mapping[str, str]
Words = Annotated[list[str], Field(fail_fast=True)]
Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_DEADLINE = "Answer within this many milliseconds, or not at all (504)."
_UNCERTAINTY = r"^uncertainty=([0-9]+\.?[0-9]*|\.[0-9]+)(e-?[0-9]+)?$"
_EITHER = {
    "tasks": 'tasks: expected a list of names, or "all"',
    "threshold": 'threshold: expected a score between 0 and 1, or "uncertainty=0.1"',
}
"""Messages for fields that take two types, where pydantic would name only the first."""
_EXPECTED = 'expected {"requests": [...]}, or one request such as {"task": "sms", "text": "you won a prize"}'


class Item(BaseModel):
    """One text for one task (`task`), for several (`tasks`) or for `"all"` of them.

    It is a text, a text and its pair, tokens, or a question and its context.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | None = Field(default=None, description="A served task.", examples=["sms"])
    tasks: Words | Literal["all"] | None = Field(default=None, description="Several tasks, or all of them.")
    text: str | None = Field(default=None, examples=["you won a prize"])
    pair: str | None = Field(default=None, description="The second text.")
    tokens: Words | None = Field(default=None, description="Words, each of which gets a tag.")
    question: str | None = None
    context: str | None = Field(default=None, description="The text that holds the answer.")
    top_k: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Keep this many scores.")
    threshold: Annotated[float, Field(ge=0, le=1)] | Annotated[str, Field(pattern=_UNCERTAINTY)] | None = Field(
        default=None, description="No label below this score; uncertainty=0.1: none if an ensemble disagrees more."
    )
    raw: bool = Field(default=False, description="Scores without calibration.")
    long: Long = Field(default="cut", description="What to do with a text that is too long.")
    explain: bool = Field(default=False, description="Add tokens and their alpha, if the method is AdapterBias.")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.task is None) == (self.tasks is None):
            raise ValueError("give either task or tasks")
        forms = [name for name in ("text", "tokens", "question") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError("give one of text, tokens, or question with context")
        if self.pair is not None and forms != ["text"]:
            raise ValueError("pair goes with text")
        if (self.context is not None) != (forms == ["question"]):
            raise ValueError("question and context go together")
        for name in ("text", "pair", "question", "context"):
            if (text := getattr(self, name)) is not None and not text.strip():
                raise ValueError(f"{name} is blank")
        if self.tokens is not None and not any(token.strip() for token in self.tokens):
            raise ValueError("tokens has no words")
        return self

    @property
    def characters(self) -> int:
        """The length of all its texts, with a blank after each token."""
        parts = (self.text, self.pair, self.question, self.context)
        words = len(self.tokens) + sum(map(len, self.tokens)) if self.tokens else 0
        return words + sum(len(part) for part in parts if part is not None)

    @property
    def given(self) -> Input:
        """The input, as `Host.predict` takes it."""
        if self.tokens is not None:
            return self.tokens
        if self.question is not None and self.context is not None:
            return {"question": self.question, "context": self.context}
        text = self.text or ""
        return text if self.pair is None else (text, self.pair)

    def task_names(self, served: Callable[[], Sequence[str]]) -> Sequence[str]:
        """The tasks that it is for; `served` gives the tasks that "all" stands for."""
        if self.task is not None:
            return [self.task]
        return served() if self.tasks == "all" else list(dict.fromkeys(self.tasks or ()))

    def asks(self, tasks: Sequence[str]) -> list[Ask]:
        """One ask per task; they share the rows that are made from the text."""
        options = (self.top_k, self.threshold, self.raw, self.long, self.explain)
        shared: dict[Any, Any] = {}
        return [Ask(task, self.given, *options, shared, len(tasks) > 1) for task in tasks]


_FIELDS = frozenset(Item.model_fields)


class Body(BaseModel):
    """The body of a call: any mix of tasks and kinds of input."""

    model_config = ConfigDict(extra="forbid", strict=True)

    requests: list[Item]
    deadline_ms: Milliseconds | None = Field(default=None, description=_DEADLINE)


class Alone(Item):
    """A body that is one request by itself; it is answered with a list of one."""

    deadline_ms: Milliseconds | None = Field(default=None, description=_DEADLINE)


class Wanted(BaseModel):
    """Which version a task should have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ref: str | None = Field(default=None, description="name, name@version or name@alias.", examples=["sms@3"])


class Problem(BaseModel):
    """What went wrong."""

    type: str
    message: str


class Failure(BaseModel):
    """An error instead of an answer, or of all answers."""

    error: Problem


class Answer(BaseModel):
    """The answer of one task. Which fields it has depends on the task's kind."""

    model_config = ConfigDict(extra="allow")

    task: str
    version: int | None = None
    text: str | None = None
    label: str | list[str] | None = None
    score: float | None = None
    scores: dict[str, float | None] | None = None
    spans: list[dict[str, Any]] | None = None
    value: float | None = None
    answer: str | None = None
    start: int | None = None
    end: int | None = None


class Group(BaseModel):
    """The answers of several tasks to one item."""

    results: dict[str, Failure | Answer]


class Answers(BaseModel):
    """The answers of a call, in the order of its items."""

    results: list[Failure | Group | Answer]
    ms: float = Field(description="How long the call took on the server.")
    batch: int = Field(description="How many requests, from all clients, ran in the same pass.")


class TaskCard(BaseModel):
    """A task that is served."""

    model_config = ConfigDict(extra="allow")

    name: str
    version: int
    ref: str
    kind: str
    task: str
    method: str
    labels: list[str]
    pairs: bool
    members: int = Field(0, description="How many an ensemble has.")
    parameters: dict[str, Any]
    metrics: dict[str, Any]
    metric: str = Field("", description="The metric that decides.")
    state: str


class TaskCards(BaseModel):
    """All tasks that are served."""

    tasks: list[TaskCard]


class State(BaseModel):
    """The state of the service."""

    status: str


def parse(content: bytes, limits: Limits) -> tuple[list[Item | Refused], float | None]:
    """The items of a call, with a Refused in place of each bad one, and its deadline in milliseconds.

    Raises:
        Refused: the whole body cannot be used.
    """
    refuse_crowded(content, limits)
    try:
        body = from_json(content)
    except ValueError as error:
        raise Refused(400, "invalid", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(422, "invalid", f"the body is not an object: {_EXPECTED}")
    deadline = _milliseconds(body.pop("deadline_ms", None))
    if "requests" not in body:
        return [_alone(body, limits)], deadline
    items = body.pop("requests")
    if body:
        raise Refused(422, "invalid", f"{next(iter(body))[:100]}: no such field next to requests: {_EXPECTED}")
    if not isinstance(items, list) or not items:
        raise Refused(422, "invalid", "requests: expected a list of at least one request")
    if len(items) > limits.items:
        raise Refused(413, "too_large", f"{len(items):,} requests in one call; at most {limits.items:,} are allowed")
    return [_item(item, limits) for item in items], deadline


def refuse_crowded(content: bytes, limits: Limits) -> None:
    """Refuse a body of too many values; counts separators in a few passes over the bytes, valid or not."""
    if content.count(b",") + content.count(b"{") + content.count(b"[") + content.count(b'"') // 2 <= limits.values:
        return
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")  # the only quotes left are those around texts
    texts = content.count(b'"') // 2
    if texts <= limits.values:  # separators within texts do not count
        content = b"".join(content.split(b'"')[::2])
        if content.count(b",") + content.count(b"{") + content.count(b"[") <= limits.values:
            return
    raise Refused(413, "too_large", f"the body holds more than {limits.values:,} values")


def problem(kind: str, message: str) -> dict[str, Any]:
    """`{"error": {"type": ..., "message": ...}}`."""
    return {"error": {"type": kind, "message": message}}


def dump(value: object) -> bytes:
    """JSON; numbers that are not finite become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def refused(error: ValidationError) -> Refused:
    """A refusal for the first mistake: 400 if the body is not JSON, 422 if it is not as expected."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    text = f"{where[:200]}: {message[:300]}" if where else message[:300]
    text = _EITHER.get(str(first["loc"][0]), text) if where else text
    return Refused(400 if first["type"] == "json_invalid" else 422, "invalid", text)


def schemas() -> dict[str, Any]:
    """The bodies that are read by hand, as OpenAPI components."""
    models: list[tuple[type[BaseModel], Literal["validation"]]]
    models = [(Body, "validation"), (Alone, "validation"), (Wanted, "validation")]
    _, document = models_json_schema(models, ref_template="#/components/schemas/{model}")
    return dict(document["$defs"])


def _alone(body: dict[str, Any], limits: Limits) -> Item:
    if not body.keys() & _FIELDS:
        raise Refused(422, "invalid", f"requests is missing: {_EXPECTED}")
    item = _item(body, limits)
    if isinstance(item, Refused):
        raise item
    return item


def _item(value: Any, limits: Limits) -> Item | Refused:
    if not isinstance(value, dict):
        return Refused(422, "invalid", 'a request is an object such as {"task": "sms", "text": "you won a prize"}')
    unknown = next((key for key in value if key not in _FIELDS), None)
    if unknown is not None:  # before pydantic, which would list every such key
        return Refused(422, "invalid", f"unknown field {unknown[:100]!r}. {suggest(unknown[:100], _FIELDS)}")
    try:
        item = Item.model_validate(value)
    except ValidationError as error:
        return refused(error)
    if (length := item.characters) > limits.characters:
        allowed = f"at most {limits.characters:,} are allowed"
        return Refused(413, "too_long", f"the text has {length:,} characters; {allowed}")
    return item


def _milliseconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Refused(422, "invalid", "deadline_ms: expected a number of milliseconds above 0")
    return float(min(value, 1e12))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
