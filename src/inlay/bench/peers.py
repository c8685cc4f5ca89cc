"""Peers: other libraries in processes of their own, because their requirements exclude each other and ours.

A worker reads and answers one JSON object per line (bench/peers/peer.py has the protocol). A worker that fails, dies
or takes too long raises PeerError; the report then says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.errors import InlayError, RunError

if TYPE_CHECKING:
    from inlay.bank.delta import Method

KINDS: Mapping[str, tuple[str, ...]] = {"peft": ("lora",), "adapters": ("lora", "houlsby")}
"""Peer -> the methods it has that Inlay has too."""
SECONDS = 1800.0
"""How long a peer may take for one answer: a thousand adapters are slow to add."""
EXIT_SECONDS = 10.0
"""How long a peer may take to exit after its output has ended."""


class PeerError(InlayError):
    """A peer that could not do its work."""


@dataclass(frozen=True)
class Peer:
    """Which interpreter runs a peer, and where its packages are."""

    name: str
    python: str
    path: str | None = None
    """For PYTHONPATH, where the packages are not installed."""
    workers: str | None = None
    """The folder with the worker's script; None is bench/peers of a checkout."""

    def command(self) -> list[str]:
        """How to start it."""
        folder = Path(self.workers) if self.workers else Path(__file__).parents[3] / "bench" / "peers"
        script = folder / f"{self.name}_worker.py"
        if not script.is_file():
            raise RunError(f"there is no {script}; name a checkout's bench/peers with --peer-scripts")
        return [self.python, str(script)]


def method_for(peer: str, method: Method) -> dict[str, Any]:
    """A method as a request to a peer names it; PeerError if the peer does not have it."""
    from inlay.methods.houlsby import Houlsby
    from inlay.methods.lora import Lora

    if method.name not in KINDS.get(peer, (method.name,)):
        raise PeerError(f"has no {method.name}")
    if isinstance(method, Lora) and method == Lora(rank=method.rank, alpha=method.alpha):
        return {"kind": "lora", "rank": method.rank, "alpha": method.alpha}
    same = ("gelu", "relu", "tanh", "swish")
    if isinstance(method, Houlsby) and method.activation in same:
        plain = Houlsby(size=method.size, activation=method.activation, init=method.init, norms=method.norms)
        if method == plain:
            return {"kind": "houlsby", "size": method.size, "activation": method.activation}
    raise PeerError(f"has no {method.spec}")


class Worker:
    """A peer's process."""

    def __init__(self, peer: Peer, seconds: float = SECONDS):
        self.name = peer.name
        self.seconds = seconds
        command = peer.command()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment |= {"PYTHONPATH": peer.path} if peer.path else {}
        if not peer.path:
            environment.pop("PYTHONPATH", None)  # the one set is for our interpreter
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the process has died
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        try:
            self._process = subprocess.Popen(command, text=True, env=environment, **pipes)
        except OSError as error:
            self._errors.close()
            raise RunError(f"cannot start {peer.name} with {peer.python}: {error.strerror}") from None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self.seconds)
        except queue.Empty:
            raise PeerError(f"gave no answer to {request['op']} within {self.seconds:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise PeerError(f"died in {request['op']}: {self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise PeerError(f"answered {line.strip()[:80]!r}, which is not a JSON object")
        if "error" in answer:
            raise PeerError(f"failed in {request['op']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # it may have died with a request unread
                    stream.close()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed while we were reading
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_SECONDS)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        code = self._process.returncode
        silent = "it closed its output without a message" if code is None else f"exit code {code}, and no message"
        return lines[-1] if lines else silent


def not_given(peers: Sequence[Peer]) -> list[str]:
    """A line for every peer that is left out because its interpreter was not given."""
    missing = [name for name in KINDS if name not in {peer.name for peer in peers}]
    return [f"{name} is left out: pass --{name}-python" for name in missing]
