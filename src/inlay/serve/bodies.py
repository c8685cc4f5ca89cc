"""What travels: the bodies of requests and answers, as pydantic models, and the OpenAPI document made of them.

A body is checked in one go, in compiled code. Only if that fails are its items checked one by one, so that a bad item
fails alone: it becomes an `{"error": ...}` in its place, and the call succeeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import models_json_schema

from inlay.serve.ask import Ask
from inlay.serve.limits import Limits, Refused

Long = Literal["cut", "windows", "refuse"]
Given = str | tuple[str, str] | list[str] | Mapping[str, str]


class Item(BaseModel):
    """One text for one task (`task`), for several (`tasks`) or for `"all"` of them.

    It is a text, a text and its pair, tokens, or a question and its context.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | None = Field(default=None, description="A served task.", examples=["sms"])
    tasks: list[str] | Literal["all"] | None = Field(default=None, description="Several tasks, or all of them.")
    text: str | None = Field(default=None, examples=["you won a prize"])
    pair: str | None = Field(default=None, description="The second text.")
    tokens: list[str] | None = Field(default=None, description="Words, each of which gets a tag.")
    question: str | None = None
    context: str | None = Field(default=None, description="The text that holds the answer.")
    top_k: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Keep so many of the scores.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="Below it, no label.")
    raw: bool = Field(default=False, description="Scores without calibration.")
    long: Long = Field(default="cut", description="What becomes of a text that is too long.")
    explain: bool = Field(default=False, description="Add tokens and their alpha, where the method has one.")

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
        return self

    @property
    def characters(self) -> int:
        """How long it is, all its texts together."""
        parts = (self.text, self.pair, self.question, self.context, *(self.tokens or ()))
        return sum(len(part) for part in parts if part is not None)

    @property
    def given(self) -> Given:
        """What is asked, as `Host.predict` takes it."""
        if self.tokens is not None:
            return self.tokens
        if self.question is not None and self.context is not None:
            return {"question": self.question, "context": self.context}
        text = self.text or ""
        return text if self.pair is None else (text, self.pair)

    def asks(self, served: Sequence[str]) -> list[Ask]:
        """One for every task that is wanted; `served` is what "all" stands for."""
        several = list(served) if self.tasks == "all" else list(dict.fromkeys(self.tasks or ()))
        wanted = [self.task] if self.task is not None else several
        how = (self.top_k, self.threshold, self.raw, self.long, self.explain)
        return [Ask(task, self.given, *how) for task in wanted]


class Body(BaseModel):
    """The body of a call: any mix of tasks and kinds of input."""

    model_config = ConfigDict(extra="forbid", strict=True)

    requests: list[Item]
    deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Answer within so many milliseconds, or not at all (504)."
    )


class _Loose(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    requests: list[Any]
    deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Wanted(BaseModel):
    """Which version a task should have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ref: str | None = Field(default=None, description="name, name@version or name@alias.", examples=["sms@3"])


class Problem(BaseModel):
    """What went wrong."""

    type: str
    message: str


class Failure(BaseModel):
    """What stands for an answer, or for all of them, when there is none."""

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
    ms: float = Field(description="How long the call took here.")
    batch: int = Field(description="How many questions, of whomever, ran together in one pass with these.")


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
    parameters: dict[str, Any]
    metrics: dict[str, Any]
    metric: str = Field("", description="The one that decides.")
    state: str


class TaskCards(BaseModel):
    """All tasks that are served."""

    tasks: list[TaskCard]


class State(BaseModel):
    """How the service is."""

    status: str


def parse(content: bytes, limits: Limits) -> tuple[list[Item | Refused], float | None]:
    """The items of a call, each as it is or with what is wrong with it, and its deadline in milliseconds.

    Raises:
        Refused: if the whole body is of no use.
    """
    try:
        body = Body.model_validate_json(content)
        items: list[Item | Refused] = list(body.requests)
        deadline = body.deadline_ms
    except ValidationError as error:
        items, deadline = _one_by_one(content, error)
    if not items:
        raise Refused(422, "invalid", "requests is empty; expected at least one")
    if len(items) > limits.items:
        raise Refused(413, "too_large", f"there are {len(items):,} requests in this call; at most {limits.items:,}")
    return [_measured(item, limits) for item in items], deadline


def problem(kind: str, message: str) -> dict[str, Any]:
    """`{"error": {"type": ..., "message": ...}}`."""
    return {"error": {"type": kind, "message": message}}


def dump(value: object) -> bytes:
    """JSON; numbers that are not finite have none, and become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def said(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{where[:200]}: {message[:300]}" if where else message[:300]


def status_of(error: ValidationError) -> int:
    """400 for what is not JSON, 422 for what is not the JSON that was expected."""
    return 400 if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid" else 422


def schemas() -> dict[str, Any]:
    """The bodies that are read by hand, as OpenAPI components."""
    _, found = models_json_schema(
        [(Body, "validation"), (Wanted, "validation")], ref_template="#/components/schemas/{model}"
    )
    return dict(found["$defs"])


def _one_by_one(content: bytes, whole: ValidationError) -> tuple[list[Item | Refused], float | None]:
    try:
        loose = _Loose.model_validate_json(content)
    except ValidationError as error:
        raise Refused(status_of(error), "invalid", said(error)) from None
    items: list[Item | Refused] = []
    for one in loose.requests:
        try:
            items.append(Item.model_validate(one))
        except ValidationError as error:
            items.append(Refused(422, "invalid", said(error)))
        except RecursionError:
            items.append(Refused(422, "invalid", said(whole)))
    return items, loose.deadline_ms


def _measured(item: Item | Refused, limits: Limits) -> Item | Refused:
    if isinstance(item, Item) and (length := item.characters) > limits.characters:
        return Refused(413, "too_long", f"the text has {length:,} characters; at most {limits.characters:,}")
    return item


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
