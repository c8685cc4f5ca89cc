"""Calls to a service and their answers, for both kinds of client (see `client.py`).

A service that is busy or warming up is asked again, after the time that it names.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from inlay.errors import InlayError

if TYPE_CHECKING:
    import httpx

Answer = dict[str, Any]
Request = tuple[str, Any] | Mapping[str, Any]
"""(task, input) as `Host.predict` takes it, or an item as the service takes it."""
_JSON = {"Content-Type": "application/json"}
_AGAIN = (429, 503)
_LONGEST = 10.0
"""Seconds to wait before asking again, at most."""


class ServiceError(InlayError):
    """A service has refused (`status` is the HTTP status), or cannot be reached (`status` is None)."""

    def __init__(self, message: str, status: int | None = None, kind: str = "unreachable"):
        super().__init__(message)
        self.status, self.kind = status, kind


class BaseClient:
    """The settings of both clients."""

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
            retries: how often a busy service is asked again.
            at_once: requests in one call; longer lists take several calls, as does what the service finds too large.
        """
        httpx = httpx_module()
        try:
            parsed = httpx.URL(url)
            is_url = parsed.scheme in ("http", "https") and parsed.host != "" and (parsed.port or 0) < 1 << 16
        except httpx.InvalidURL:
            is_url = False
        if not is_url:
            raise InlayError(f"{url!r} is not the URL of a service; expected one such as http://127.0.0.1:8000")
        self.url, self.timeout, self.retries, self.at_once = url.rstrip("/"), timeout, retries, at_once
        key = os.environ.get("INLAY_KEY") if key is None else key
        self.headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
        self.socket = None if socket is None else os.fspath(socket)


class Conversations(BaseClient):
    """All calls to a service, over an `httpx.AsyncClient` or an object with its methods."""

    _http: Any
    _sleep: Callable[[float], Awaitable[None]]

    async def predict(
        self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any
    ) -> list[Answer]:
        """As `Client.predict`."""
        calls = PendingCalls(self, requests, how, deadline_ms)
        answers: list[Answer] = []
        while calls:
            response = await self._send("POST", "/v1/predict", calls.next())
            if response.status_code == 200:
                answers += document_of(response)["results"]
                calls.answered()
            elif wait := calls.refused(response):
                await self._sleep(wait)
        return answers

    async def ask(self, task: str, given: Any, *, deadline_ms: float | None = None, **how: Any) -> Answer:
        """As `Client.ask`."""
        (answer,) = await self.predict([(task, given)], deadline_ms=deadline_ms, **how)
        if "error" in answer:
            raise ServiceError(answer["error"]["message"], 200, answer["error"]["type"])
        return answer

    async def stream(
        self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any
    ) -> AsyncGenerator[Answer, None]:
        """As `Client.stream`."""
        calls = PendingCalls(self, requests, how, deadline_ms)
        while calls:
            wait, content = 0.0, calls.next()
            stream = self._http.stream("POST", "/v1/predict/stream", content=content, headers=_JSON)
            with connection_errors(self.url):
                async with stream as response:
                    if response.status_code == 200:
                        async for answer in _answers(response, calls.start):
                            yield answer
                        calls.answered()
                    else:
                        await response.aread()
                        wait = calls.refused(response)
            if wait:
                await self._sleep(wait)

    async def tasks(self) -> list[Answer]:
        """As `Client.tasks`."""
        return list((await self._request("GET", "/v1/tasks"))["tasks"])

    async def task(self, name: str) -> Answer:
        """As `Client.task`."""
        return await self._request("GET", _path(name))

    async def serve(self, name: str, ref: str | None = None) -> Answer:
        """As `Client.serve`."""
        return await self._request("PUT", _path(name), json.dumps({} if ref is None else {"ref": ref}).encode())

    async def withdraw(self, name: str) -> None:
        """As `Client.withdraw`."""
        await self._request("DELETE", _path(name))

    async def ready(self) -> bool:
        """As `Client.ready`."""
        return bool((await self._send("GET", "/ready")).status_code == 200)

    async def _request(self, method: str, path: str, content: bytes | None = None) -> Answer:
        response = await self._send(method, path, content)
        for _ in range(self.retries):
            if response.status_code not in _AGAIN:
                break
            await self._sleep(_pause(response))
            response = await self._send(method, path, content)
        return dict(document_of(response))

    async def _send(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        headers = None if content is None else _JSON
        with connection_errors(self.url):
            response: httpx.Response = await self._http.request(method, path, content=content, headers=headers)
        return response


class PendingCalls:
    """A list of requests, sent in as many calls as it takes; true while there are more.

    A call that the service finds too large is sent in halves, and a busy service is asked again: how much fits depends
    on how it was started, and on the requests.
    """

    def __init__(
        self, client: BaseClient, requests: Sequence[Request], how: Mapping[str, Any], deadline_ms: float | None
    ):
        self._deadline = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
        self._items = [item_of(request, how) for request in requests]
        self._at_once = min(max(1, client.at_once), max(1, len(self._items)))
        self._retries = self._left = client.retries
        self.start = 0
        """The index of the first request that is not answered."""

    def __bool__(self) -> bool:
        return self.start < len(self._items)

    def next(self) -> bytes:
        """The body of the next call."""
        items = self._items[self.start : self.start + self._at_once]
        try:
            return json.dumps({"requests": items, **self._deadline}, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InlayError(f"this cannot be sent: {error}") from None

    def answered(self) -> None:
        """Note that the call was answered."""
        self.start += self._at_once
        self._left = self._retries

    def refused(self, response: httpx.Response) -> float:
        """Note that the call was refused; returns the seconds to wait before the next, which may be smaller.

        Raises:
            ServiceError: asking again is of no use.
        """
        sent = min(self._at_once, len(self._items) - self.start)
        if response.status_code == 413 and sent > 1:
            self._at_once = (sent + 1) // 2
            return 0.0
        if response.status_code not in _AGAIN or not self._left:
            document_of(response)
        self._left -= 1
        return _pause(response)


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
    """The document in a response; raises ServiceError if it is an error."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.status_code == 200 and document is not None:
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        error = {"type": "http", "message": response.text[:200]}
    raise ServiceError(f"{response.url}: {error.get('message')}", response.status_code, str(error.get("type")))


async def _answers(response: httpx.Response, first: int) -> AsyncIterator[Answer]:
    """The answers of a stream up to its closing line; `first` is the index of its first request among all."""
    complete = False
    async for line in response.aiter_lines():
        answer = json.loads(line)
        if "done" in answer:
            complete = True
        else:
            yield {**answer, "index": first + answer["index"]}
    if not complete:
        raise ServiceError("the connection was lost before all answers had arrived")


@contextmanager
def connection_errors(url: str) -> Iterator[None]:
    """Raise a ServiceError if the service cannot be reached."""
    try:
        yield
    except (httpx_module().HTTPError, UnicodeError) as error:
        reason = str(error) or type(error).__name__
        raise ServiceError(f"{url} cannot be reached: {reason}; is inlay serve running there?") from None


def httpx_module() -> Any:
    """The package httpx, or an error that says how to install it."""
    try:
        return importlib.import_module("httpx")
    except ModuleNotFoundError:
        raise InlayError("the client needs httpx: pip install 'inlay[serve]'") from None


def _pause(response: httpx.Response) -> float:
    try:
        return min(_LONGEST, max(0.0, float(response.headers.get("retry-after", 1.0))))
    except ValueError:
        return 1.0


def _path(name: str) -> str:
    return f"/v1/tasks/{quote(name, safe='')}"
