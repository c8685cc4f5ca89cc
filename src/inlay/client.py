"""Asking a running service: `inlay.Client(url).predict([("sms", "you won a prize")])`, and the same with await.

What is said is written once, in `client_protocol.py`; the two clients differ only in how they wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self

from inlay.client_protocol import (
    Answer,
    BaseClient,
    PendingCalls,
    Request,
    ServiceError,
    Steps,
    StreamedLines,
    Wait,
    connection_errors,
    httpx_module,
    to_httpx,
)

__all__ = ["AsyncClient", "Client", "ServiceError"]


class Client(BaseClient):
    """A service, asked from plain code. Use it with `with`, or close it."""

    def __init__(self, url: str, key: str | None = None, **options: Any):
        super().__init__(url, key, **options)
        httpx = httpx_module()
        transport = None if self.socket is None else httpx.HTTPTransport(uds=self.socket)
        self._http = httpx.Client(base_url=self.url, headers=self.headers, timeout=self.timeout, transport=transport)

    def predict(self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any) -> list[Answer]:
        """Answers in order; one that failed is `{"error": {"type", "message"}}` in its place.

        Args:
            requests: (task, text), (task, (text, pair)), (task, [words]), (task, {"question": ..., "context": ...}), or
                whole items such as {"tasks": "all", "text": ...}.
            deadline_ms: answer within this time or not at all.
            how: top_k, threshold, raw, long, explain for all of them.
        """
        return list(self._run(self.predict_steps(requests, how, deadline_ms)))

    def ask(self, task: str, given: Any, *, deadline_ms: float | None = None, **how: Any) -> Answer:
        """One answer; raises ServiceError if there is none."""
        return dict(self._run(self.ask_steps(task, given, how, deadline_ms)))

    def stream(self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any) -> Iterator[Answer]:
        """Lines `{"index", "result"}` as answers come, with `"task"` for requests that name several.

        It takes several calls where `predict` does, one after the other; `index` counts over all of them.
        """
        calls = PendingCalls(self, "/v1/predict/stream", requests, how, deadline_ms)
        while calls:
            send, lines, wait = calls.next(), StreamedLines(calls.start), 0.0
            with connection_errors(self.url), self._http.stream(send.method, send.path, **to_httpx(send)) as response:
                if response.status_code == 200:
                    for line in response.iter_lines():
                        yield from lines.read(line)
                    lines.check()
                    calls.answered()
                else:
                    response.read()
                    wait = calls.refused(response)
            if wait:
                time.sleep(wait)

    def tasks(self) -> list[Answer]:
        """Cards of the tasks that are served."""
        return list(self._run(self.tasks_steps()))

    def task(self, name: str) -> Answer:
        """The card of one task; also of one version of it, as `name@version` or `name@alias`."""
        return dict(self._run(self.task_steps(name)))

    def serve(self, name: str, ref: str | None = None) -> Answer:
        """Serve a version under a name; the newest if none is named."""
        return dict(self._run(self.serve_steps(name, ref)))

    def withdraw(self, name: str) -> None:
        """Serve a task no more."""
        self._run(self.withdraw_steps(name))

    def ready(self) -> bool:
        """Whether it answers; raises ServiceError if it cannot be reached."""
        return bool(self._run(self.ready_steps()))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps) -> Any:
        response = None
        while True:
            try:
                step = steps.send(response)
            except StopIteration as end:
                return end.value
            response = None
            if isinstance(step, Wait):
                time.sleep(step.seconds)
            else:
                with connection_errors(self.url):
                    response = self._http.request(step.method, step.path, **to_httpx(step))


class AsyncClient(BaseClient):
    """A service, asked with await. Use it with `async with`, or close it."""

    def __init__(self, url: str, key: str | None = None, **options: Any):
        super().__init__(url, key, **options)
        httpx = httpx_module()
        transport = None if self.socket is None else httpx.AsyncHTTPTransport(uds=self.socket)
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=self.timeout, transport=transport
        )

    async def predict(
        self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any
    ) -> list[Answer]:
        """As `Client.predict`."""
        return list(await self._run(self.predict_steps(requests, how, deadline_ms)))

    async def ask(self, task: str, given: Any, *, deadline_ms: float | None = None, **how: Any) -> Answer:
        """As `Client.ask`."""
        return dict(await self._run(self.ask_steps(task, given, how, deadline_ms)))

    async def stream(
        self, requests: Sequence[Request], *, deadline_ms: float | None = None, **how: Any
    ) -> AsyncIterator[Answer]:
        """As `Client.stream`."""
        calls = PendingCalls(self, "/v1/predict/stream", requests, how, deadline_ms)
        while calls:
            send, lines, wait = calls.next(), StreamedLines(calls.start), 0.0
            with connection_errors(self.url):
                async with self._http.stream(send.method, send.path, **to_httpx(send)) as response:
                    if response.status_code == 200:
                        async for line in response.aiter_lines():
                            for found in lines.read(line):
                                yield found
                        lines.check()
                        calls.answered()
                    else:
                        await response.aread()
                        wait = calls.refused(response)
            if wait:
                await asyncio.sleep(wait)

    async def tasks(self) -> list[Answer]:
        """As `Client.tasks`."""
        return list(await self._run(self.tasks_steps()))

    async def task(self, name: str) -> Answer:
        """As `Client.task`."""
        return dict(await self._run(self.task_steps(name)))

    async def serve(self, name: str, ref: str | None = None) -> Answer:
        """As `Client.serve`."""
        return dict(await self._run(self.serve_steps(name, ref)))

    async def withdraw(self, name: str) -> None:
        """As `Client.withdraw`."""
        await self._run(self.withdraw_steps(name))

    async def ready(self) -> bool:
        """As `Client.ready`."""
        return bool(await self._run(self.ready_steps()))

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps) -> Any:
        response = None
        while True:
            try:
                step = steps.send(response)
            except StopIteration as end:
                return end.value
            response = None
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            else:
                with connection_errors(self.url):
                    response = await self._http.request(step.method, step.path, **to_httpx(step))
