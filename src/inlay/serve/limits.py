"""The limits of a call, how bodies are read within them, and what a refusal is."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inlay.errors import InlayError

_SOON = 1.0
_PACKETS = 16 << 10
_DRAINED = 16
"""A body that is too large is read and thrown away up to this many times the limit, so that its client gets an answer:
many clients send all of it before they read anything, and would find their connection reset."""


@dataclass(frozen=True)
class Limits:
    """A call beyond these is refused."""

    body: int = 8 << 20
    """Bytes of a body."""
    items: int = 256
    """Requests in a call."""
    answers: int = 1024
    """Answers of a call: a request may be for several tasks."""
    characters: int = 100_000
    """Characters in all texts of one request."""
    values: int = 200_000
    """Keys, texts, words, numbers, lists and objects in a body."""
    echoed: int = 16 << 20
    """Characters of all answers of a call: a text is in the answer of every task."""
    management: int = 64 << 10
    """Bytes of a body that changes a task."""
    connections: int = 1024
    """Open at once."""
    seconds: float = 30.0
    """Seconds for a call; a deadline may be shorter, not longer."""
    headers: int = 64 << 10
    """Bytes of a request before its body."""
    patience: float = 10.0
    """Seconds for a client to send a request, from its first byte to the end of its body."""


class Refused(InlayError):  # noqa: N818 - as Busy and Late
    """A call, or an item of one, is refused; with the HTTP status and the kind of problem."""

    def __init__(self, status: int, kind: str, message: str, retry_after: float | None = None, hang_up: bool = False):
        super().__init__(message)
        self.status, self.kind, self.retry_after, self.hang_up = status, kind, retry_after, hang_up

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers: when to try again, in whole seconds; how to authenticate; that the connection closes."""
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return headers | ({"Connection": "close"} if self.hang_up else {})


class Parting(Response):
    """The last answer on a connection; what the client still sends is thrown away, within limits, before the end."""

    def __init__(self, content: bytes, status: int, headers: dict[str, str], media_type: str, limits: Limits):
        super().__init__(content, status, headers, media_type)
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, read on for a while, and end."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left = _DRAINED * self.limits.body
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.patience):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def not_ready() -> Refused:
    """The refusal while the service warms up or ends."""
    return Refused(503, "not_ready", "the service is starting up or shutting down; try again in a moment", _SOON)


async def read_body(request: Request, limits: Limits, most: int, json: bool = True) -> bytes:
    """Read a body of at most `most` bytes that arrives in time.

    Raises:
        Refused: 408, 413, or 415 if its content type is not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if json and kind != "application/json" and not kind.endswith("+json"):
        raise Refused(415, "invalid", f"Content-Type: expected application/json, not {kind[:100] or 'none'}")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.patience):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise Refused(408, "slow", f"the body did not arrive within {limits.patience:g} s", hang_up=True) from None
    except ClientDisconnect:
        raise Refused(499, "gone", "the client has disconnected") from None
    request.scope["body read"] = True
    return b"".join(parts)


def is_sending(request: Request) -> bool:
    """Whether a client may still be sending an unread body of more than a few packets."""
    if request.scope.get("body read"):
        return False
    length = request.headers.get("content-length", "0")
    return "transfer-encoding" in request.headers or not length.isdecimal() or int(length[:20]) > _PACKETS


def _too_large(most: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {most:,} bytes", hang_up=True)
