"""Writers that are killed, and many of them at the same time: nothing is lost, nothing is seen half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from library.samples import adapter, files, value

from inlay.errors import LibraryError
from inlay.library import cards
from inlay.library.library import Library
from inlay.library.storage import File, Folder

PROGRAM = Path(__file__).with_name("killing.py")


def told(*arguments: object) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.full
def test_killed_at_fifty_random_moments(tmp_path):
    found = told("random", tmp_path, 50, 1)
    assert found["faults"] == []
    assert found["kills"] == 50
    assert found["inside"] >= 20, "most kills must meet a change half done"
    assert found["parts"] > 0, "some must meet a file half written"


@pytest.mark.full
def test_files_written_in_place_are_noticed(tmp_path):
    """So that the kills above would show a fault."""
    assert told("torn", tmp_path, 20, 1)["faults"]


@pytest.mark.full
def test_killed_before_every_step(tmp_path):
    found = told("steps", tmp_path)
    assert found.pop("faults") == []
    assert all(steps >= 8 for steps in found.values()), found


# --- at the same time -------------------------------------------------------------------------------------------

_WRITER = """
import sys, time
from pathlib import Path
import torch
from inlay import Adapter, Library
library, number, start = Library(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
(start / f"ready-{number}").touch()
while not (start / "go").exists():
    time.sleep(0.001)
for i in range(15):
    library.put(Adapter("lora", "sha256:0", {"a": torch.tensor([float(number), i])}, name="shared"))
    library.put(Adapter("lora", "sha256:0", {"a": torch.tensor([float(i)])}, name="same"))
    own = library.put(Adapter("lora", "sha256:0", {"a": torch.tensor([float(i)])}, name=f"own-{number}"))
    library.alias("shared", "prod", i + 1)
    if i % 5 == 4:
        library.remove(f"own-{number}@{i}")
        library.gc()
"""


@pytest.mark.full
def test_writers_at_the_same_time_lose_nothing(tmp_path):
    library, n = Library(tmp_path / "library"), 3
    command = [sys.executable, "-c", _WRITER, library.root]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [subprocess.Popen([*command, str(i), str(tmp_path)], env=environment) for i in range(n)]
    try:
        while not all((tmp_path / f"ready-{i}").exists() for i in range(n)):
            assert all(writer.poll() is None for writer in writers)
            time.sleep(0.01)
        (tmp_path / "go").touch()
        assert [writer.wait(timeout=120) for writer in writers] == [0] * n
    finally:
        for writer in writers:
            writer.kill()
    assert library.versions("shared") == list(range(1, 15 * n + 1))
    found = [tuple(library.get(f"shared@{v}").tensors["a"].tolist()) for v in library.versions("shared")]
    assert sorted(found) == [(number, i) for number in range(n) for i in range(15)]
    for number in range(n):
        assert [i for who, i in found if who == number] == list(range(15)), "everyone's own order is kept"
        assert library.versions(f"own-{number}") == [v for v in range(1, 16) if v not in (4, 9, 14)]
    assert {library.get(f"same@{v}").tensors["a"].item() for v in library.versions("same")} == set(range(15))
    moves = [move.version for move in library.alias_history("shared", "prod")]
    assert set(moves) == set(range(1, 16)), "no move is lost"
    assert library.verify() == []
    assert not [f for f in files(library) if Path(f).name.startswith(".")]


def test_the_same_adapter_from_many_threads_is_one_version(tmp_path):
    library, start = Library(tmp_path), threading.Barrier(8)
    found: list[int] = []

    def put() -> None:
        start.wait()
        found.append(library.put(adapter(1.0)).version)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert library.versions("tone") == [1]


@pytest.mark.full
def test_it_can_be_read_while_it_is_written(tmp_path):
    library = Library(tmp_path)
    library.put(adapter(0.0))
    library.alias("tone", "prod", 1)
    stop, faults, seen = threading.Event(), [], set()

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(value(library, "tone"))
                assert library.find("tone@prod").version >= 1
                assert [entry.name for entry in library.list()] == ["tone"]
            except (LibraryError, AssertionError) as error:
                faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 60):
            library.alias("tone", "prod", library.put(adapter(float(number))).version)
            if number % 7 == 0:
                library.remove(f"tone@{number - 2}")
                library.gc()
    finally:
        stop.set()
        reader.join()
    assert not faults
    assert len(seen) > 5


def test_an_alias_that_is_newer_than_the_listing_is_followed(tmp_path, monkeypatch):
    """A listing takes a while: it may have passed the versions when one is added, and see the alias's move to it."""
    library, other = Library(tmp_path), Library(tmp_path)
    library.put(adapter(1.0))
    library.alias("tone", "prod", 1)
    real, fresh = Folder.list, [True]

    def slow(self: Folder, folder: str, parts: bool = False) -> list[File]:
        before = real(self, folder, parts)
        if fresh and self is library.storage:
            fresh.clear()
            other.put(adapter(2.0))
            other.alias("tone", "prod", 2)
            moves = [file for file in real(self, folder, parts) if "/aliases/" in file.path]
            return [file for file in before if "/aliases/" not in file.path] + moves
        return before

    monkeypatch.setattr(Folder, "list", slow)
    assert value(library, "tone@prod") == 2.0
    for ref in ("tone", None):
        fresh.append(True)
        assert library.verify(ref) == []


def test_a_number_that_is_taken_in_between_is_not_overwritten(tmp_path, monkeypatch):
    library, other = Library(tmp_path), Library(tmp_path)
    library.put(adapter(1.0))
    real, fresh = Folder.create, [True]

    def create(self: Folder, path: str, content: bytes) -> bool:
        if path.endswith("/2.json") and fresh:
            fresh.clear()
            other.put(adapter(2.0))
        return real(self, path, content)

    monkeypatch.setattr(Folder, "create", create)
    assert library.put(adapter(3.0)).version == 3
    assert [value(library, f"tone@{v}") for v in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_a_number_that_is_taken_and_removed_in_between_is_not_used_again(tmp_path, monkeypatch):
    library, other = Library(tmp_path), Library(tmp_path)
    library.put(adapter(1.0))
    real, fresh = Folder.create, [True]

    def create(self: Folder, path: str, content: bytes) -> bool:
        if path.endswith("/2.json") and fresh:
            fresh.clear()
            other.put(adapter(2.0))
            other.remove("tone@2")
            other.gc(grace=0.0)
        return real(self, path, content)

    monkeypatch.setattr(Folder, "create", create)
    assert library.put(adapter(3.0)).version == 3
    assert library.versions("tone") == [1, 3]
    assert value(library, "tone") == 3.0


# --- gc beside a writer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before the card", "after the card"])
def test_gc_while_a_slow_writer_puts_loses_nothing(tmp_path, monkeypatch, moment):
    """Without a grace period, so that only the order of things protects the writer."""
    library, other = Library(tmp_path), Library(tmp_path)
    library.put(adapter(1.0))
    real = Folder.create

    def create(self: Folder, path: str, content: bytes) -> bool:
        if moment == "before the card":
            assert other.gc(grace=-10.0).files == 1, "the blob has no card yet"
            return real(self, path, content)
        made = real(self, path, content)
        assert other.gc(grace=-10.0).files == 0
        return made

    monkeypatch.setattr(Folder, "create", create)
    library.put(adapter(2.0))
    assert value(library, "tone@2") == 2.0
    assert library.verify() == []


def test_a_card_that_appears_while_gc_runs_keeps_its_blob(tmp_path, monkeypatch):
    library, other = Library(tmp_path), Library(tmp_path)
    entry = library.put(adapter(1.0))
    card = (tmp_path / "adapters" / "tone" / "1.json").read_bytes()
    (tmp_path / "adapters" / "tone" / "1.json").unlink()
    real = Folder.move

    def move(self: Folder, old: str, new: str) -> None:
        real(self, old, new)
        other.storage.create(cards.card_path("tone", 1), card)

    monkeypatch.setattr(Folder, "move", move)
    assert library.gc(grace=-10.0).files == 0
    monkeypatch.undo()
    assert library.find("tone") == entry
    assert value(library, "tone") == 1.0
    assert not list((tmp_path / "aside").iterdir())


def test_a_blob_without_a_card_is_kept_while_it_is_young(tmp_path):
    library = Library(tmp_path)
    entry = library.put(adapter(1.0))
    library.put(adapter(2.0))
    (tmp_path / "adapters" / "tone" / "1.json").unlink()
    blob = tmp_path / "blobs" / f"{entry.sha256}.safetensors"
    assert library.gc() == (0, 0)
    assert blob.exists()
    os.utime(blob, (0, time.time() - 4000))
    assert library.gc(dry_run=True) == (1, entry.bytes)
    assert blob.exists()
    assert library.gc() == (1, entry.bytes)
    assert not blob.exists()
    assert value(library, "tone") == 2.0
