"""File systems without hard links (exFAT, many FUSE mounts): a name is taken first, and filled then."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from library.samples import adapter, value

from inlay.errors import LibraryError
from inlay.library.library import Library
from inlay.library.storage import TAKEN


@pytest.fixture(autouse=True)
def no_links(monkeypatch):
    def link(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)


def test_a_library_works(tmp_path):
    library = Library(tmp_path)
    assert [library.put(adapter(float(n))).version for n in (1, 2, 2)] == [1, 2, 2]
    library.alias("tone", "prod", 1)
    library.alias("tone", "prod", 2)
    library.alias("tone", "prod", None)
    library.remove("tone@1")
    library.restore("tone@1")
    assert value(library, "tone@1") == 1.0
    assert library.verify() == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size <= len(TAKEN)]


def test_of_many_writers_everyone_gets_a_number(tmp_path):
    start, found = threading.Barrier(6), []

    def put(number: int) -> None:
        start.wait()
        found.append(Library(tmp_path).put(adapter(float(number))).version)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    library = Library(tmp_path)
    assert sorted(value(library, f"tone@{v}") for v in found) == [0, 1, 2, 3, 4, 5]


def test_a_writer_that_was_killed_after_it_took_a_name_is_in_nobodys_way(tmp_path):
    library = Library(tmp_path)
    library.put(adapter(1.0))
    library.alias("tone", "prod", 1)
    for taken in ("2.json", "aliases/prod/2.json", "aliases/test/1.json"):
        path = Path(tmp_path, "adapters", "tone", taken)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(TAKEN)
    assert library.versions("tone") == [1]
    assert library.find("tone").version == 1
    assert library.aliases("tone") == {"prod": 1}
    assert [entry.ref for entry in library.list(all_versions=True)] == ["tone@1"]
    with pytest.raises(LibraryError, match="tone has no version '2'"):
        library.get("tone@2")
    assert library.verify() == []
    library.gc(grace=-10.0)
    assert library.put(adapter(2.0)).version == 3
    library.alias("tone", "prod", 3)
    assert library.aliases("tone") == {"prod": 3}
    assert [move.version for move in library.alias_history("tone", "prod")] == [1, 3]
    assert library.verify() == []


def test_a_full_disk_is_not_taken_for_a_missing_link(tmp_path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(LibraryError, match="No space left on device"):
        Library(tmp_path).put(adapter(1.0))
    assert not list(tmp_path.glob("adapters/**/*.json"))
