"""What is said to a service and what is made of its answers, however one waits for them (see `client.py`).

A conversation is a generator: it yields what to send, or how long to wait, is given the response, and returns what came
of it. A service that is busy or warming up is asked again, after the time it says.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from inlay.errors import InlayError

if TYPE_CHECKING:
    import httpx

Answer = dict[str, Any]
Request = tuple[str, Any] | Mapping[str, Any]
"""(task, what to answer) as `Host.predict` takes it, or an item as the service takes it."""
_AGAIN = (429, 503)
_LONGEST = 10.0
"""Seconds to wait before asking again, at most."""


class ServiceError(InlayError):
    """A service refused, or cannot be reached; `status` is None then."""

    def __init__(self, message: str, status: int | None = None, kind: str = "unreachable"):
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Send:
    """One request; a generator of these gets responses back."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """A pause before asking again."""

    seconds: float


Steps = Generator["Send | Wait", "httpx.Response | None", Any]
"""A conversation."""


class BaseClient:
    """What both clients share."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        at_once: int = 128,
    ):
        """
        Args:
            key: an API key; by default `INLAY_KEY`.
            socket: the Unix socket to connect to, such as that of `inlay serve --management-socket`.
            retries: how often a service that is busy is asked again.
            at_once: requests in one call; longer lists take several, as does what the service finds too large.
        """
        if not url.startswith(("http://", "https://")):
            raise InlayError(f"{url!r} is not the URL of a service; expected one such as http://127.0.0.1:8000")
        self.url, self.timeout, self.retries, self.at_once = url.rstrip("/"), timeout, retries, at_once
        key = os.environ.get("INLAY_KEY") if key is None else key
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.socket = None if socket is None else os.fspath(socket)

    def _asked(self, send: Send) -> Steps:
        for _ in range(self.retries):
            response = yield send
            assert response is not None
            if response.status_code not in _AGAIN:
                return document_of(response)
            yield Wait(_pause(response))
        response = yield send
        assert response is not None
        return document_of(response)

    def predict_steps(self, requests: Sequence[Request], how: Mapping[str, Any], deadline_ms: float | None) -> Steps:
        """Ask for answers, in as many calls as it takes."""
        calls = PendingCalls(self, "/v1/predict", requests, how, deadline_ms)
        found: list[Answer] = []
        while calls:
            response = yield calls.next()
            assert response is not None
            if response.status_code == 200:
                found += document_of(response)["results"]
                calls.answered()
            elif wait := calls.refused(response):
                yield Wait(wait)
        return found

    def ask_steps(self, task: str, given: Any, how: Mapping[str, Any], deadline_ms: float | None) -> Steps:
        """Ask for one answer."""
        (answer,) = yield from self.predict_steps([(task, given)], how, deadline_ms)
        if "error" in answer:
            raise ServiceError(answer["error"]["message"], 200, answer["error"]["type"])
        return answer

    def tasks_steps(self) -> Steps:
        """Ask for the cards."""
        return (yield from self._asked(Send("GET", "/v1/tasks")))["tasks"]

    def task_steps(self, name: str) -> Steps:
        """Ask for one card."""
        return (yield from self._asked(Send("GET", f"/v1/tasks/{_quoted(name)}")))

    def serve_steps(self, name: str, ref: str | None) -> Steps:
        """Have a version served."""
        content = json.dumps({} if ref is None else {"ref": ref}).encode()
        sent = Send("PUT", f"/v1/tasks/{_quoted(name)}", content, {"Content-Type": "application/json"})
        return (yield from self._asked(sent))

    def withdraw_steps(self, name: str) -> Steps:
        """Have a task served no more."""
        yield from self._asked(Send("DELETE", f"/v1/tasks/{_quoted(name)}"))

    def ready_steps(self) -> Steps:
        """Ask whether it answers."""
        response = yield Send("GET", "/ready")
        assert response is not None
        return response.status_code == 200


class PendingCalls:
    """A list of requests on its way, in as many calls as it takes; true while there are more.

    What a service finds too large is sent in halves, and a service that is busy is asked again: how much fits depends
    on how it was started, and on what is in the requests.
    """

    def __init__(
        self,
        client: BaseClient,
        path: str,
        requests: Sequence[Request],
        how: Mapping[str, Any],
        deadline_ms: float | None,
    ):
        self.path, self.deadline_ms = path, deadline_ms
        self._items = [item_of(one, how) for one in requests]
        self._at_once = min(max(1, client.at_once), max(1, len(self._items)))
        self._retries = self._left = client.retries
        self.start = 0
        """The place of the first request that is not answered."""

    def __bool__(self) -> bool:
        return self.start < len(self._items)

    def next(self) -> Send:
        """The next call."""
        some = self._items[self.start : self.start + self._at_once]
        return post(self.path, {"requests": some}, self.deadline_ms)

    def answered(self) -> None:
        """That call is done."""
        self.start += self._at_once
        self._left = self._retries

    def refused(self, response: httpx.Response) -> float:
        """That call was not: how many seconds to wait before the next, which may be a smaller one.

        Raises:
            ServiceError: if asking again is of no use.
        """
        if response.status_code == 413 and self._at_once > 1:
            self._at_once = (self._at_once + 1) // 2
            return 0.0
        if response.status_code not in _AGAIN or not self._left:
            document_of(response)
        self._left -= 1
        return _pause(response)


def post(path: str, body: Mapping[str, Any], deadline_ms: float | None) -> Send:
    """A request with a JSON body."""
    whole = dict(body) if deadline_ms is None else {**body, "deadline_ms": deadline_ms}
    try:
        content = json.dumps(whole, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InlayError(f"this cannot be sent: {error}") from None
    return Send("POST", path, content, {"Content-Type": "application/json"})


def item_of(request: Request, how: Mapping[str, Any]) -> dict[str, Any]:
    """A request as the service takes it."""
    options = {key: value for key, value in how.items() if value is not None}
    if isinstance(request, Mapping):
        return {**options, **request}
    if not isinstance(request, tuple) or len(request) != 2:
        raise InlayError(f"a request is (task, text) or a mapping, not {request!r}")
    task, given = request
    if isinstance(given, str):
        return {"task": task, "text": given, **options}
    if isinstance(given, Mapping):
        return {"task": task, **given, **options}
    if isinstance(given, tuple) and len(given) == 2:
        return {"task": task, "text": given[0], "pair": given[1], **options}
    if isinstance(given, list):
        return {"task": task, "tokens": given, **options}
    raise InlayError(f"a request is a text, a pair of texts, a list of words or a mapping, not {given!r}")


def document_of(response: httpx.Response) -> Any:
    """What a response says, or the error that it stands for."""
    try:
        found = response.json()
    except ValueError:
        found = None
    if response.status_code == 200 and found is not None:
        return found
    error = found.get("error") if isinstance(found, dict) else None
    said = error if isinstance(error, dict) else {"type": "http", "message": response.text[:200]}
    raise ServiceError(f"{response.url}: {said.get('message')}", response.status_code, str(said.get("type")))


class StreamedLines:
    """The lines of one call's stream; it knows whether the last one came."""

    def __init__(self, first: int):
        """
        Args:
            first: the place of the call's first request among all.
        """
        self.first, self.complete = first, False

    def read(self, line: str) -> list[Answer]:
        """The answer in a line; none in the last one."""
        found = json.loads(line)
        if "done" in found:
            self.complete = True
            return []
        return [{**found, "index": self.first + found["index"]}]

    def check(self) -> None:
        """Refuse a stream that was cut off."""
        if not self.complete:
            raise ServiceError("the connection was lost before all answers had arrived")


@contextmanager
def connection_errors(url: str) -> Iterator[None]:
    """A service that cannot be reached is a ServiceError."""
    try:
        yield
    except httpx_module().HTTPError as error:
        said = f"{error or type(error).__name__}; is inlay serve running there?"
        raise ServiceError(f"{url} cannot be reached: {said}") from None


def to_httpx(send: Send) -> dict[str, Any]:
    """As httpx takes it."""
    return {"content": send.content, "headers": dict(send.headers)}


def httpx_module() -> Any:
    """The package that speaks HTTP."""
    try:
        return importlib.import_module("httpx")
    except ModuleNotFoundError:
        raise InlayError("the client needs httpx: pip install 'inlay[serve]'") from None


def _pause(response: httpx.Response) -> float:
    return min(_LONGEST, _number(response.headers.get("retry-after"), 1.0))


def _number(text: str | None, otherwise: float) -> float:
    try:
        return max(0.0, float(text or otherwise))
    except ValueError:
        return otherwise


def _quoted(name: str) -> str:
    return quote(name, safe="")
