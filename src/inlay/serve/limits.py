"""How much one call may ask for, how bodies are read within that, and what a refusal is."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from inlay.errors import InlayError

_SOON = 1.0


@dataclass(frozen=True)
class Limits:
    """Beyond these a call is refused."""

    body: int = 8 << 20
    """Bytes of a body."""
    items: int = 256
    """Requests in a call."""
    answers: int = 1024
    """Answers of a call: a request may be for several tasks."""
    characters: int = 100_000
    """Of all texts of one request."""
    values: int = 200_000
    """Keys, texts, words, numbers, lists and objects in a body."""
    echoed: int = 16 << 20
    """Characters of all answers of a call: a text is in the answer of every task."""
    management: int = 64 << 10
    """Bytes of a body that manages a task."""
    connections: int = 1024
    """Open at once."""
    seconds: float = 30.0
    """For a call; a deadline may be shorter, not longer."""
    headers: int = 64 << 10
    """Bytes before a body."""
    patience: float = 10.0
    """Seconds for a client to send a request, from its first byte to the end of its body."""


class Refused(InlayError):  # noqa: N818 - as Busy and Late
    """A call, or an item of one, that is not answered; with its HTTP status and the kind of problem."""

    def __init__(self, status: int, kind: str, message: str, retry_after: float | None = None, hang_up: bool = False):
        super().__init__(message)
        self.status, self.kind, self.retry_after, self.hang_up = status, kind, retry_after, hang_up

    @property
    def headers(self) -> dict[str, str]:
        """When to come back, in whole seconds, as HTTP has it; how to show who one is; and whether to stop talking."""
        found = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        found |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return found | ({"Connection": "close"} if self.hang_up else {})


def not_ready() -> Refused:
    """What is said while the service warms up or ends."""
    return Refused(503, "not_ready", "the service is not ready yet, or about to end", _SOON)


async def read_body(request: Request, limits: Limits, most: int, json: bool = True) -> bytes:
    """A body of at most so many bytes that comes fast enough.

    Raises:
        Refused: 408, 413, or 415 if it is not said to be JSON.
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
        raise Refused(408, "slow", f"the body did not come within {limits.patience:g} s", hang_up=True) from None
    except ClientDisconnect:
        raise Refused(499, "gone", "the client has gone") from None
    return b"".join(parts)


def _too_large(most: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {most:,} bytes", hang_up=True)
