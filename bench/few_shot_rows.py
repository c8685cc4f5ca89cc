"""The rows that all rivals of bench/few_shot.py train and are tested on, and the store of their results.

Needs Python alone, so that it works in every rival's environment. A folder of draws has a folder for each dataset, with
`test.jsonl` and a file for each draw: `8-3.jsonl` is draw 3 of 8 rows per class. A row has a `text` and a `label`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One draw of one dataset: what a rival trains once."""

    folder: Path
    size: int
    draw: int

    @property
    def dataset(self) -> str:
        return self.folder.name

    @property
    def train(self) -> Path:
        return self.folder / f"{self.size}-{self.draw}.jsonl"

    @property
    def test(self) -> Path:
        return self.folder / "test.jsonl"

    def fingerprint(self) -> str:
        """Of the rows to train and to test on: results of other rows are not compared with these."""
        return hashlib.sha256(self.train.read_bytes() + self.test.read_bytes()).hexdigest()[:12]

    def line(self, rival: str, accuracy: float, seconds: float, **more: Any) -> dict[str, Any]:
        """What the store keeps of a run."""
        known = {"dataset": self.dataset, "size": self.size, "draw": self.draw, "rival": rival}
        return known | {"accuracy": accuracy, "seconds": round(seconds, 3), "rows": self.fingerprint()} | more


def columns(file: Path) -> tuple[list[str], list[str]]:
    """The texts and the labels."""
    rows = read(file)
    return [row["text"] for row in rows], [row["label"] for row in rows]


def read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(file: Path, rows: Collection[dict[str, Any]], *, append: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a" if append else "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def jobs(
    draws: Path, store: Path, rival: str, datasets: Collection[str], sizes: Collection[int], most: int
) -> list[Job]:
    """What is left to do for a rival: draw by draw, so that a comparison cut short has whole draws of everything."""
    done = {_key(line) for line in read(store) if line["rival"] == rival}
    return [job for job in _all(draws, datasets, sizes, most) if (job.dataset, job.size, job.draw) not in done]


def _key(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["dataset"], line["size"], line["draw"]


def _all(draws: Path, datasets: Collection[str], sizes: Collection[int], most: int) -> Iterator[Job]:
    for draw in range(most):
        for size in sorted(sizes, reverse=True):
            for dataset in datasets:
                job = Job(draws / dataset, size, draw)
                if not job.train.exists():
                    raise SystemExit(f"there is no {job.train}: make it with `bench/few_shot.py draw`")
                yield job
