"""Two that remove, restore and clean up at the same time, in every order of their steps: nothing is lost for good.

A step is a call of the storage. The first goes on until its step k, the second until its step j, then both end.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from library.samples import adapter, value

from inlay.errors import LibraryError
from inlay.library.library import Library
from inlay.library.storage import File

_STEPS = ("read", "read_all", "create", "replace", "list", "stat", "remove", "move")
Files = dict[str, tuple[bytes, float]]
Action = Callable[[Library], object]


class _Memory:
    """What a folder does, without a disk."""

    def __init__(self, files: Files):
        self.files = files

    def where(self, path: str) -> str:
        return path

    def read(self, path: str, limit: int | None = None) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][0]

    def read_all(self, paths: Any, limit: int) -> dict[str, Any]:
        return {path: self.files[path][0] for path in paths if path in self.files}

    def create(self, path: str, content: bytes) -> bool:
        return self.files.setdefault(path, made := (content, time.time())) is made

    def replace(self, path: str, content: bytes) -> None:
        self.files[path] = (content, time.time())

    def list(self, folder: str, parts: bool = False) -> list[File]:
        return [File(p, len(c), at) for p, (c, at) in list(self.files.items()) if p.startswith(f"{folder}/")]

    def stat(self, path: str) -> File | None:
        return File(path, len(self.files[path][0]), self.files[path][1]) if path in self.files else None

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def move(self, old: str, new: str) -> None:
        if old not in self.files:
            raise FileNotFoundError(old)
        self.files[new] = self.files.pop(old)


def opened(files: Files) -> Library:
    library = Library("memory")
    library.storage = _Memory(files)
    return library


class _Stepped:
    """An action in a thread that waits before every step until it may go on."""

    def __init__(self, files: Files, act: Action):
        self.error: BaseException | None = None
        self.done = False
        self._may, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        library = opened(files)
        for name in _STEPS:
            setattr(library.storage, name, self._stepped(getattr(library.storage, name)))
        self._thread = threading.Thread(target=self._run, args=(act, library), daemon=True)
        self._thread.start()
        self._waits.acquire()

    def _stepped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            self._waits.release()
            self._may.acquire()
            return call(*arguments, **options)

        return stepped

    def _run(self, act: Action, library: Library) -> None:
        try:
            act(library)
        except BaseException as error:
            self.error = error
        self.done = True
        self._waits.release()

    def go(self, steps: int | None = None) -> int:
        """So many steps, or all; returns how many there were."""
        for count in itertools.count():
            if self.done or count == steps:
                return count
            self._may.release()
            self._waits.acquire()
        raise AssertionError("unreachable")


def interleaved(start: Files, first: Action, second: Action) -> Iterator[tuple[Library, str]]:
    """Both actions on copies of some files, in every order."""
    lengths = [_Stepped(dict(start), act).go() for act in (first, second)]
    assert min(lengths) > 3
    for k, j in itertools.product(range(lengths[0]), range(lengths[1] + 1)):
        files = dict(start)
        one = _Stepped(files, first)
        one.go(k)
        other = _Stepped(files, second)
        other.go(j)
        one.go()
        other.go()
        errors = [found for found in (one.error, other.error) if found is not None]
        assert all(isinstance(error, LibraryError) for error in errors), f"{k} {j}: {errors!r}"
        yield opened(files), f"{k} {j} {errors}"


@pytest.fixture
def start() -> Files:
    files: Files = {}
    library = opened(files)
    for number in (1.0, 2.0):
        library.put(adapter(number))
    library.alias("tone", "old", 1)
    library.alias("tone", "old", None)
    return files


def remove(library: Library) -> None:
    library.remove("tone")


def restore(library: Library) -> None:
    library.restore("tone")


def gc(library: Library) -> None:
    library.gc(grace=-10.0)


def assert_all_there(library: Library, how: str) -> None:
    for version in (1, 2):
        if version not in library.versions("tone"):
            library.restore(f"tone@{version}")
        assert value(library, f"tone@{version}") == version, how
    assert library.verify() == [], how


def test_two_that_remove_lose_nothing(start):
    for library, how in interleaved(start, remove, remove):
        assert library.versions("tone") == [], how
        assert_all_there(library, how)


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_removes_beside_one_that_restores(start, order):
    opened(start).remove("tone@1")
    for library, how in interleaved(start, *(remove, restore)[::order]):
        assert_all_there(library, how)


@pytest.mark.parametrize("other", [restore, gc, remove])
def test_two_that_restore_clean_up_or_remove_what_is_in_the_trash(start, other):
    """What was in the trash is back or gone for good, and never anything between; the rest stays."""
    opened(start).remove("tone@1")
    for first, second in ((gc, other), (other, gc)) if other is not gc else ((gc, gc),):
        for library, how in interleaved(start, first, second):
            library.gc(grace=-10.0)
            for version in library.versions("tone"):
                assert value(library, f"tone@{version}") == version, how
            if other is not remove:
                assert 2 in library.versions("tone"), how
            assert library.verify() == [], how


def test_removed_by_another_is_said(start):
    library, other = opened(start), opened(start)
    read = library.storage.read

    def late(path: str, limit: int | None = None) -> bytes:
        if path == "adapters/tone/1.json" and 1 in other.versions("tone"):
            other.remove("tone@1")
        return read(path, limit)

    library.storage.read = late
    with pytest.raises(LibraryError, match="tone@1 was removed a moment ago"):
        library.remove("tone@1")
    assert [entry.ref for entry in other.removed()] == ["tone@1"]


def test_gc_between_the_list_of_the_trash_and_its_card(start):
    library, other = opened(start), opened(start)
    library.remove("tone@1")
    read = library.storage.read

    def late(path: str, limit: int | None = None) -> bytes:
        if path.startswith("trash/"):
            other.gc(grace=-10.0)
        return read(path, limit)

    library.storage.read = late
    with pytest.raises(LibraryError, match="tone@1 is not in the trash any more"):
        library.restore("tone@1")
