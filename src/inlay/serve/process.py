"""A service as a process: it takes its port before it loads anything, and before it ends, it answers what it accepted.

SIGTERM and SIGINT end it gently (`server.py`); then the engine finishes its queue, and the exit code is 0. A second
SIGINT ends it at once. A service whose engine has failed ends with an error.
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
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from inlay.errors import AdapterError, InlayError, RunError
from inlay.serve.app import Service, build
from inlay.serve.server import DRAIN, Server


def take_port(host: str, port: int) -> socket.socket:
    """A socket that is bound, but does not listen yet; port 0 takes any free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InlayError(f"--host {host}: {getattr(error, 'strerror', error)}") from None
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
    """The URL of a socket."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(service: Service, taken: Sequence[socket.socket], started: Callable[[], None] = lambda: None) -> None:
    """Serve on these sockets until a signal comes, or the engine fails.

    Args:
        started: called when it is ready.

    Raises:
        RunError: the engine has failed.
    """
    failures: list[Exception] = []
    with signals() as ended:

        def fail(error: Exception) -> None:
            failures.append(error)
            ended.set()

        def engine_failed(error: BaseException) -> None:
            fail(RunError(f"the engine has failed: {error}"))

        def listen() -> None:
            try:
                server.run(taken)
            except BaseException as error:
                fail(RunError(f"the HTTP server has failed: {error!r}"))
            ended.set()

        server = Server(build(service, lifespan_of(service, fail, started)), service.limits)
        engine = service.engine
        engine.on_failure = engine_failed
        if engine.failed is not None:
            engine_failed(engine.failed)
        thread = threading.Thread(target=listen, name="inlay-http", daemon=True)
        thread.start()
        try:
            ended.wait()
            server.end()
            thread.join()
        except KeyboardInterrupt:  # the second one: end at once
            pass
    if failures:
        raise failures[0]


def lifespan_of(
    service: Service, fail: Callable[[Exception], None], started: Callable[[], None] = lambda: None
) -> Callable[[FastAPI], Any]:
    """Warms up while the server already says that it is not ready, and drains the engine at the end.

    Args:
        fail: called with an error of the warm-up; it should end the service.
    """

    def warm_up() -> None:
        try:
            begin(service, refuse=True)
        except Exception as error:
            fail(error)
        else:
            started()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        thread = threading.Thread(target=warm_up, name="inlay-warm-up", daemon=True)
        thread.start()
        yield
        await asyncio.to_thread(thread.join, DRAIN)
        await asyncio.to_thread(finish, service)

    return lifespan


def begin(service: Service, refuse: bool = False) -> None:
    """Find out what to serve and warm up; returns when the engine accepts asks.

    Args:
        refuse: whether a named task that cannot be served is an error, not a line in the log.
    """
    notes = service.catalogue.sync(force=True)
    if refuse and (refused := service.catalogue.refused()):
        raise AdapterError("; ".join(refused))
    for note in notes:
        service.log.problem(note)
    service.engine.start()
    if service.watcher is not None:
        service.watcher.start()


def finish(service: Service) -> None:
    """Answer what was accepted, and end the engine."""
    if service.watcher is not None:
        service.watcher.stop()
    service.engine.stop(True, DRAIN)


@contextmanager
def signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and the first SIGINT set; a second SIGINT raises KeyboardInterrupt."""
    ended = threading.Event()

    def end(number: int, _: Any) -> None:
        if ended.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        ended.set()

    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
