"""`inlay serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from inlay.library.library import Library


class Process:
    """A service that is ready; killed at the end if it has not ended by itself."""

    def __init__(self, library: Library, *options: Any):
        self.log = tempfile.NamedTemporaryFile("a")  # noqa: SIM115 - closed with the process
        command = [sys.executable, "-m", "inlay.cli.main", "serve", "--json", "--library", str(library.root)]
        self.child = subprocess.Popen(
            [*command, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.child.stdout is not None
        lines = []
        for line in self.child.stdout:
            lines.append(line)
            if line == "}\n":
                break
        assert lines, self.said()
        self.about: dict[str, Any] = json.loads("".join(lines))
        self.url: str = self.about["url"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.end(signal.SIGKILL)
        assert self.child.stdout is not None
        self.child.stdout.close()
        self.log.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; its exit code."""
        self.child.send_signal(number)
        return self.child.wait(60)

    def said(self) -> str:
        """What it wrote to stderr."""
        return Path(self.log.name).read_text()  # its own place in the file, not the child's


def state_of(library: Library, port: int) -> Path:
    """Where a service keeps what was chosen."""
    return library.local / "serving" / f"{port}.json"
