"""Many clients in one process: raw sockets and keep-alive, so that asking costs little beside answering."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    """From sending to the whole answer."""
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.seconds) / (self.ended - self.began)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


Judge = Callable[[str, str, dict[str, Any]], str]
"""(task, text, answer) -> what is wrong with it; empty if nothing is."""


async def run(
    port: int,
    asks: list[tuple[str, str]],
    clients: int,
    seconds: float,
    judge: Judge,
    seed: int = 0,
    order: Iterator[int] | None = None,
) -> Load:
    """Each client asks one thing after the other, drawn from `asks`, until the time is over.

    Args:
        order: which of `asks` comes next, for all clients together, in the place of drawing; its end is the end.
    """
    load = Load()
    bodies = [_encode(task, text) for task, text in asks]
    load.began = time.monotonic()
    end = load.began + seconds

    async def client(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.monotonic() < end:
                which = draw.randrange(len(asks)) if order is None else next(order, None)
                if which is None:
                    break
                began = time.perf_counter()
                writer.write(bodies[which])
                status, content = await _answer(reader)
                took = time.perf_counter() - began
                if status != 200:
                    load.errors.append(f"{status} {content[:200]!r}")
                    continue
                found = json.loads(content)["results"][0]
                problem = judge(*asks[which], found)
                if problem:
                    load.wrong.append(problem)
                load.seconds.append(took)
        except (OSError, asyncio.IncompleteReadError) as error:
            load.errors.append(repr(error))
        finally:
            writer.close()

    await asyncio.gather(*(client(i) for i in range(clients)))
    load.ended = time.monotonic()
    return load


def _encode(task: str, text: str) -> bytes:
    body = json.dumps({"requests": [{"task": task, "text": text}]}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:"))
    return int(lines[0].split()[1]), await reader.readexactly(length)
