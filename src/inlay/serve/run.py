"""A service as a process: it takes its port before it loads anything, and answers all it accepted before it ends.

On SIGTERM or SIGINT the port is closed first. Connections that are open are told `Connection: close` with their next
answer, so requests that were on their way are answered; then idle ones are closed, the engine finishes its queue, and
the process ends with 0. A second SIGINT ends it at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inlay.errors import InlayError, RunError
from inlay.serve.app import Service, build
from inlay.serve.limits import Limits
from inlay.serve.watch import Watcher

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

_LAST = 0.3
"""Seconds for requests that were on their way when the end was asked for."""
_DRAIN = 60.0
"""Seconds for all that was accepted."""


@dataclass(frozen=True)
class Running:
    """A service and how it is run."""

    service: Service
    cors: tuple[str, ...] = ()
    watcher: Watcher | None = None
    started: Callable[[], None] | None = None
    """Called when it is ready."""


def take_port(host: str, port: int) -> socket.socket:
    """A socket that is bound, but does not listen yet; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InlayError(f"--host {host}: {error.strerror}") from None
    except OverflowError:
        raise InlayError(f"--port {port}: a port is a number from 0 to 65535") from None
    taken = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise InlayError(f"port {port} of {host} is taken; choose another with --port, or 0 for any") from None
        raise InlayError(f"port {port} of {host} cannot be used: {error.strerror}") from None
    taken.setblocking(False)
    return taken


@contextmanager
def taken_socket(path: Path | None) -> Iterator[list[socket.socket]]:
    """A Unix socket that only this user can open, gone at the end; none without a path."""
    if path is None:
        yield []
        return
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind_unix(taken, path)
        taken.setblocking(False)
        yield [taken]
        path.unlink(missing_ok=True)
    finally:
        taken.close()


def _bind_unix(taken: socket.socket, path: Path) -> None:
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left behind by a service that was killed
        before = os.umask(0o177)
        try:
            taken.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        reason = "it exists already" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise InlayError(f"--management-socket {path}: {reason}") from None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def url_of(taken: socket.socket) -> str:
    """Where a socket is reached."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(running: Running, taken: Sequence[socket.socket]) -> None:
    """Serve on these sockets until a signal comes."""
    failures: list[Exception] = []
    lifespan = lifespan_of(running, failures, lambda: setattr(server, "should_exit", True))
    server = server_of(build(running.service, running.cors, lifespan), running.service.limits)

    def failed(error: BaseException) -> None:
        failures.append(RunError(f"the engine has failed: {error}"))
        server.should_exit = True

    running.service.engine.on_failure = failed
    with _quiet_signals():
        server.run(list(taken))
    if failures:
        raise failures[0]


def server_of(app: FastAPI, limits: Limits) -> Server:
    """An HTTP server around an application."""
    config = uvicorn.Config(
        app,
        http=_protocol(limits),
        ws="none",
        lifespan="on",
        loop="auto",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,  # who asks is who is connected
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(_DRAIN),
    )
    return Server(config)


def lifespan_of(
    running: Running, failures: list[Exception], end: Callable[[], None] | None = None
) -> Callable[[FastAPI], Any]:
    """Warms up beside the server, which says meanwhile that it is not ready, and drains the engine at the end.

    Args:
        failures: gets what went wrong while warming up.
        end: called then; it should end the service.
    """

    def warm_up() -> None:
        try:
            begin(running)
        except Exception as error:
            failures.append(error)
            if end is not None:
                end()
            return
        if running.started is not None:
            running.started()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        thread = threading.Thread(target=warm_up, name="inlay-warm-up", daemon=True)
        thread.start()
        yield
        await asyncio.to_thread(thread.join, _DRAIN)
        await asyncio.to_thread(finish, running)

    return lifespan


def begin(running: Running) -> None:
    """Find out what to serve, warm up and accept asks; returns when it does."""
    service = running.service
    for note in service.catalogue.sync(force=True):
        service.log.write("task", problem=note)
    service.engine.start()
    if running.watcher is not None:
        running.watcher.start()


def finish(running: Running) -> None:
    """Answer what was accepted, and end."""
    if running.watcher is not None:
        running.watcher.stop()
    running.service.engine.stop(True, _DRAIN)


class Server(uvicorn.Server):
    """uvicorn's server, with a gentler end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening; let what is on its way come in, and be answered."""
        for server in self.servers:
            server.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for connection in list(self.server_state.connections):
            if (cycle := getattr(connection, "cycle", None)) is not None and not cycle.response_complete:
                cycle.keep_alive = False
        await asyncio.sleep(_LAST)
        await super().shutdown(sockets)


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Closes connections of clients that take too long to say what they want, or say it at too great a length."""

    class Connection(HttpToolsProtocol):
        patience: TimerHandle | None = None
        unread = 0

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._heard()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self.unread += len(data)
            if self.patience is None and (self.cycle is None or self.cycle.response_complete):
                self._wait()
            super().data_received(data)
            if self.patience is not None and self.unread > limits.headers:
                self._give_up()

        def on_headers_complete(self) -> None:
            self._heard()
            super().on_headers_complete()

        def _wait(self) -> None:
            self.unread = 0
            self.patience = self.loop.call_later(limits.patience, self._give_up)

        def _heard(self) -> None:
            if self.patience is not None:
                self.patience.cancel()
                self.patience = None

        def _give_up(self) -> None:
            self._heard()
            if not self.transport.is_closing():
                self.send_400_response("The headers are too long, or came too slowly.")

    return Connection


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn sends itself the signal that ended it once more when it is done, which must not end us otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
