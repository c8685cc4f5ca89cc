"""What the benchmarks of a service share: texts to ask, a server that answers, and when two answers are the same."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import inlay
from inlay.bench.rows import draw_lengths


def texts(count: int) -> list[str]:
    """Words of the demo's files, in texts of GLUE's lengths, as in `inlay bench`."""
    folder = Path(inlay.__file__).parent / "demo"
    words = [word for name in ("tickets.csv", "reviews.tsv") for word in (folder / name).read_text().split()]
    found, at = [], 0
    for length in draw_lengths("glue", count, seed=0):
        size = max(1, round(0.8 * (length - 2)))  # a word is 1.25 tokens, and two are not words
        found.append(" ".join(words[at : at + size]))
        at = (at + size) % (len(words) - 128)
    return found


def same(found: dict[str, Any], known: dict[str, Any], tolerance: float = 1e-4) -> bool:
    """Whether two answers have the same scores."""
    scores, expected = found.get("scores") or {}, known["scores"]
    return scores.keys() == expected.keys() and all(abs(scores[k] - expected[k]) <= tolerance for k in expected)


def start(command: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    """A server that answers."""
    process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT)
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"{command[0]} ended: {log.read_text()[-1000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
                return process
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not get ready")
