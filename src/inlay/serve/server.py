"""The HTTP server: uvicorn, with a gentle end, and a limit on the time that clients take to send a request.

Both are done around uvicorn, not in it. Its protocol for a connection is wrapped in one of our own that forwards all
calls of asyncio, and closes connections whose request head does not arrive. The application is wrapped as well: it
knows when a head has arrived, and asks connections to close while the server ends.

To end, the server closes the port first. Open connections get `Connection: close` with their next answer, so requests
that were on their way are answered; then uvicorn closes idle connections, and waits for the rest.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inlay.serve.limits import Limits

_LAST = 0.3
"""Seconds for requests that were on their way when `end` was called."""
DRAIN = 60.0
"""Seconds to answer what was accepted."""
_GIVEN_UP = b"The request's headers are too long, or arrived too slowly."


class Server:
    """Serves an application on sockets."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits = app, limits
        self._heads: dict[tuple[str, int], Connection] = {}
        """Connections by the client's address."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = False
        config = uvicorn.Config(
            self._answer,
            http="httptools",
            ws="none",
            lifespan="on",
            loop="auto",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,  # the client is the peer of the connection
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=int(DRAIN),
        )
        config.load()
        plain: Callable[..., asyncio.Protocol] = config.http_protocol_class
        config.http_protocol_class = lambda **kwargs: Connection(plain(**kwargs), limits, self._heads)  # type: ignore
        self._server = uvicorn.Server(config)

    @property
    def started(self) -> bool:
        """Whether it listens."""
        return self._server.started

    def run(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `end` is called."""
        self._server.run(list(sockets))

    def end(self) -> None:
        """Stop listening, answer what is on its way, and end; callable from any thread, returns at once."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(), loop)
        self._server.should_exit = loop is None

    async def _close(self) -> None:
        self._ending = True
        for listener in self._server.servers:
            listener.close()
        await asyncio.sleep(_LAST)
        self._server.should_exit = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._loop = asyncio.get_running_loop()
            await self.app(scope, receive, send)
            return
        connection = self._heads.get(tuple(scope.get("client") or ()))
        if connection is not None:
            connection.head_arrived()

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start" and self._ending:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        try:
            await self.app(scope, receive, reply)
        finally:
            if connection is not None:
                connection.answered()


class Connection:
    """One connection; it is closed if a client takes too long to send a request's head, or if the head is too long.

    uvicorn's own protocol does everything else.
    """

    def __init__(self, inner: asyncio.Protocol, limits: Limits, heads: dict[tuple[str, int], Connection]):
        self.inner, self.limits, self.heads = inner, limits, heads
        self._transport: asyncio.Transport | None = None
        self._client: tuple[str, int] | None = None
        self._timer: asyncio.Handle | None = None
        self._unread = 0
        self._idle = False
        """Whether all requests are answered, and the next has not begun."""

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # a Unix socket's clients have no address, and are trusted
            self._client = (str(peer[0]), int(peer[1]))
            self.heads[self._client] = self
            self._wait()
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._idle and self._client is not None:
            self._wait()
        self._unread += len(data)
        self.inner.data_received(data)
        if self._timer is not None and self._unread > self.limits.headers:
            # a head that was complete in this has started a task, which runs before this does
            asyncio.get_running_loop().call_soon(self._check_length)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self.head_arrived()
        if self._client is not None and self.heads.get(self._client) is self:
            del self.heads[self._client]
        self.inner.connection_lost(exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def head_arrived(self) -> None:
        """Stop the timer: a head has arrived, or is no longer waited for."""
        self._idle = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answered(self) -> None:
        """A request is done; the next may come."""
        self._idle = True

    def _wait(self) -> None:
        self.head_arrived()
        self._unread = 0
        self._timer = asyncio.get_running_loop().call_later(self.limits.patience, self._read_once_more)

    def _read_once_more(self, rounds: int = 3) -> None:
        """Give up, but not if the loop was only too busy to read a head that is there: it reads and starts the request
        in these rounds."""
        if rounds:
            self._timer = asyncio.get_running_loop().call_soon(self._read_once_more, rounds - 1)
        else:
            self._give_up()

    def _check_length(self) -> None:
        if self._timer is not None:
            self._give_up()

    def _give_up(self) -> None:
        self.head_arrived()
        if self._transport is not None and not self._transport.is_closing():
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self._transport.write(head + b"content-length: %d\r\n\r\n" % len(_GIVEN_UP) + _GIVEN_UP)
            self._transport.close()
