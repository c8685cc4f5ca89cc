"""Asking a running service: `inlay.Client(url).predict([("sms", "you won a prize")])`, and the same with await.

The calls are written once, with await, in `client_protocol.py`. `Client` makes them over a connection that blocks:
nothing in them waits for an event loop, so each coroutine ends at its first step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from inlay.client_protocol import Answer, BaseClient, Conversations, Request, ServiceError, httpx_module

__all__ = ["AsyncClient", "Client", "ServiceError"]

T = TypeVar("T")


class AsyncClient(Conversations):
    """A client with `await`. Use it with `async with`, or close it."""

    def __init__(self, url: str, key: str | None = None, **options: Any):
        super().__init__(url, key, **options)
        httpx = httpx_module()
        transport = None if self.socket is None else httpx.AsyncHTTPTransport(uds=self.socket)
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=self.timeout, transport=transport
        )
        self._sleep = asyncio.sleep

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(BaseClient):
    """A client that blocks. Use it with `with`, or close it."""

    def __init__(self, url: str, key: str | None = None, **options: Any):
        super().__init__(url, key, **options)
        httpx = httpx_module()
        transport = None if self.socket is None else httpx.HTTPTransport(uds=self.socket)
        self._http = httpx.Client(base_url=self.url, headers=self.headers, timeout=self.timeout, transport=transport)
        self._calls = _Blocking(self._http, url, key, **options)

    def predict(self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any) -> list[Answer]:
        """Answers in order; `{"error": {"type", "message"}}` in place of one that failed.

        Args:
            requests: (task, text), (task, (text, pair)), (task, [words]), (task, {"question": ..., "context": ...}), or
                whole items such as {"tasks": "all", "text": ...}.
            deadline_ms: answer within this time or not at all.
            how: top_k, threshold, raw, long, explain for all of them.
        """
        return _now(self._calls.predict(requests, deadline_ms=deadline_ms, **how))

    def ask(self, task: str, given: Any, *, deadline_ms: float | None = None, **how: Any) -> Answer:
        """One answer; raises ServiceError if there is none."""
        return _now(self._calls.ask(task, given, deadline_ms=deadline_ms, **how))

    def stream(self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any) -> Iterator[Answer]:
        """Answers `{"index", "result"}` as they come, with `"task"` for requests that name several.

        Like `predict`, it makes several calls if it has to, one after the other; `index` counts over all of them.
        """
        answers = self._calls.stream(requests, deadline_ms=deadline_ms, **how)
        try:
            while True:
                yield _now(answers.__anext__())
        except StopAsyncIteration:
            return
        finally:
            _now(answers.aclose())

    def tasks(self) -> list[Answer]:
        """Cards of the tasks that are served."""
        return _now(self._calls.tasks())

    def task(self, name: str) -> Answer:
        """The card of one task; also of one version of it, as `name@version` or `name@alias`."""
        return _now(self._calls.task(name))

    def serve(self, name: str, ref: str | None = None) -> Answer:
        """Serve a version under a name; the newest if none is named."""
        return _now(self._calls.serve(name, ref))

    def withdraw(self, name: str) -> None:
        """Stop serving a task."""
        _now(self._calls.withdraw(name))

    def ready(self) -> bool:
        """Whether it answers; raises ServiceError if it cannot be reached."""
        return _now(self._calls.ready())

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Blocking(Conversations):
    """The calls over an `httpx.Client`, wrapped to have the methods of `httpx.AsyncClient` that they use."""

    def __init__(self, http: Any, url: str, key: str | None, **options: Any):
        super().__init__(url, key, **options)
        self._http = _BlockingHttp(http)
        self._sleep = _sleep


class _BlockingHttp:
    def __init__(self, http: Any):
        self._http = http

    async def request(self, method: str, path: str, **kwargs: Any) -> Any:
        return self._http.request(method, path, **kwargs)

    @asynccontextmanager
    async def stream(self, method: str, path: str, **kwargs: Any) -> AsyncIterator[Any]:
        with self._http.stream(method, path, **kwargs) as response:
            yield _BlockingResponse(response)


class _BlockingResponse:
    def __init__(self, response: Any):
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    async def aread(self) -> bytes:
        return bytes(self._response.read())

    async def aiter_lines(self) -> AsyncIterator[str]:
        for line in self._response.iter_lines():
            yield line


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a blocking connection has waited")
