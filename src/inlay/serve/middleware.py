"""Around every request: an id, security headers for browsers, a line in the log, and an answer in any case."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inlay.serve.bodies import dump, problem
from inlay.serve.logs import Log

_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET = ("/health", "/ready", "/metrics")
"""Paths that machines ask all the time: only failures are logged."""


class ServiceMiddleware:
    """ASGI middleware. What a handler knows about its request goes into `scope["note"]`."""

    def __init__(self, app: ASGIApp, log: Log, count: Callable[[str, int], None]):
        self.app, self.log, self.count = app, log, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        note: dict[str, Any] = {"id": _id(scope), "method": scope["method"], "path": scope["path"][:200], "status": 0}
        scope["note"] = note
        headers = [*_HEADERS, (b"x-request-id", note["id"].encode())]

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                note["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        try:
            await self.app(scope, receive, reply)
        except Exception as error:
            self.log.failed(error, id=note["id"])
            if not note["status"]:
                text = f"something went wrong here; the service's log has more under {note['id']}"
                response = Response(dump(problem("internal", text)), 500, media_type="application/json")
                await response(scope, receive, reply)
        finally:
            note["ms"] = round(1000 * (time.perf_counter() - began), 2)
            self.count(str(getattr(scope.get("route"), "path", "other")), note["status"])
            if scope["path"] not in _QUIET or note["status"] >= 500:
                self.log.write("request", **note)


def _id(scope: Scope) -> str:
    """The caller's own id, if it is safe in a log; else a new one."""
    sent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return sent if _ID.fullmatch(sent) else secrets.token_hex(8)
