"""A library at a URL: in memory, on S3 (a local fake), and on a file system that cannot create exclusively."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from library.samples import adapter, value

from inlay.errors import DamagedError, LibraryError
from inlay.library import cards
from inlay.library.library import Library
from inlay.library.url import Url

SECRETS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket on a server of our own. Requests are served one after the other, as S3 does for one object."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None: ...

    app, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def serial(environ: Any, start: Any) -> Any:
        with one:
            return list(app(environ, start))

    server = make_server("127.0.0.1", 0, serial, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for key, text in SECRETS.items():
            patch.setenv(key, text)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        bucket = f"bucket-{uuid4().hex}"
        fsspec.filesystem("s3").mkdir(bucket)
        yield f"s3://{bucket}"
        fsspec.filesystem("s3").clear_instance_cache()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["memory", "s3", "plain"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """`plain`: a file system that can rename, but not create exclusively."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid4().hex}/deep"
    if request.param == "plain":
        return f"local://{tmp_path}/deep"
    return f"memory://{uuid4().hex}"


@pytest.fixture
def library(url: str) -> Library:
    return Library(url)


def paths(library: Library) -> list[str]:
    folders = ("adapters", "blobs", "trash", "aside")
    return sorted(file.path for folder in folders for file in library.storage.list(folder, parts=True))


def test_it_is_not_the_folder(library, url):
    assert isinstance(library.storage, Url)
    assert library.root == url


def test_an_empty_one(library):
    assert (library.names(), library.list(), library.removed(), library.verify()) == ([], [], [], [])
    assert library.gc() == (0, 0)
    with pytest.raises(LibraryError, match="no adapter 'tone'"):
        library.get("tone")


def test_what_is_put_comes_back(library):
    entry = library.put(adapter(1.5), parents=["x"], base_name="b")
    assert entry == library.find("tone") == Library(library.root).find("tone@1")
    assert value(library, "tone") == 1.5
    assert library.put(adapter(1.5)) == entry
    assert library.put(adapter(2.5)).version == 2
    assert paths(library) == sorted(
        [
            *(cards.card_path("tone", v) for v in (1, 2)),
            *(cards.blob_path(library.find(f"tone@{v}").sha256) for v in (1, 2)),
        ]
    )
    assert [e.ref for e in library.list(all_versions=True)] == ["tone@1", "tone@2"]
    assert library.verify() == []


def test_aliases_trash_and_gc(library):
    for number in (1.0, 2.0, 3.0):
        library.put(adapter(number))
    library.alias("tone", "prod", 1)
    library.alias("tone", "prod", 3)
    assert [move.version for move in library.alias_history("tone", "prod")] == [1, 3]
    assert value(library, "tone@prod") == 3.0
    with pytest.raises(LibraryError, match="tone@3 is what tone@prod points to"):
        library.remove("tone")
    library.remove("tone@2")
    assert (library.versions("tone"), [e.ref for e in library.removed()]) == ([1, 3], ["tone@2"])
    library.restore("tone@2")
    assert value(library, "tone@2") == 2.0
    library.remove("tone@2")
    assert library.gc(grace=-100.0).files == 2
    assert (library.removed(), library.versions("tone")) == ([], [1, 3])
    assert library.put(adapter(4.0)).version == 4
    assert library.verify() == []
    assert not [path for path in paths(library) if path.startswith(("trash", "aside"))]


def test_a_young_blob_without_a_card_is_kept(library):
    library.storage.replace(cards.blob_path("0" * 64), b"half of a put")
    assert library.gc() == (0, 0)
    assert library.gc(grace=-100.0) == (1, 13)


def test_damage_is_noticed(library):
    entry = library.put(adapter(1.0))
    library.put(adapter(2.0), "other")
    place, path = cards.blob_path(entry.sha256), cards.card_path("tone", 1)
    content, card = library.storage.read(place), library.storage.read(path)
    damages: list[tuple[str, bytes]] = [
        (place, content[:-1] + b"\1"),
        (place, content[:-4]),
        (place, content + b"\0"),
        (path, card.replace(b"yes", b"Yes")),
        (path, card[:100]),
        (path, b"[" * 5_000_000),
    ]
    for where, damage in damages:
        library.storage.replace(where, damage)
        with pytest.raises(DamagedError):
            library.get("tone")
        assert [problem.ref for problem in library.verify()] == ["tone@1"]
        library.storage.replace(place, content)
        library.storage.replace(path, card)
    assert library.verify() == []
    library.storage.remove(place)
    with pytest.raises(DamagedError, match="is missing"):
        library.get("tone")


def test_what_cannot_be_reached_is_an_error(library, monkeypatch):
    library.put(adapter(1.0))

    def down(*_: object, **__: object) -> None:
        raise ConnectionError("the network is down")

    for name in ("pipe_file", "cat_file", "cat_ranges", "find", "info"):
        monkeypatch.setattr(library.storage.fs, name, down, raising=False)
    for call in (lambda: library.put(adapter(2.0)), lambda: library.get("tone"), library.list, library.verify):
        with pytest.raises(LibraryError, match="the network is down"):
            call()


def test_urls_that_are_none():
    with pytest.raises(LibraryError, match="nonsense://x cannot be opened"):
        Library("nonsense://x")


def test_a_bucket_that_is_not_there(s3):
    library = Library("s3://no-such-bucket-here/x")
    with pytest.raises(LibraryError, match="cannot write s3://no-such-bucket-here/x"):
        library.put(adapter(1.0))


def test_checkpoints_of_a_library_at_a_url_are_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first, second = Library("memory://a").local, Library("memory://b").local
    assert first != second
    assert first.is_relative_to(tmp_path)


# --- writers at the same time -----------------------------------------------------------------------------------


def together(n: int, act: Callable[[int], None]) -> None:
    start, errors = threading.Barrier(n), []

    def run(i: int) -> None:
        start.wait()
        try:
            act(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.fixture(params=["memory", "s3"])
def shared(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid4().hex}"
    return f"memory://{uuid4().hex}"


def test_writers_that_race_for_one_version(shared):
    """Two of them, and the second comes between the first one's look and its write."""
    first, second = Library(shared), Library(shared)
    real, met = first.storage.fs.pipe_file, []

    def late(path: str, content: bytes, **options: Any) -> Any:
        if path.endswith("/1.json") and not met:
            met.append(path)
            assert second.put(adapter(2.0)).version == 1
        return real(path, content, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first.storage.fs, "pipe_file", late)
        # the lock of memory:// is held at that moment: the second writer must have its own
        if first.storage.lock is not None:
            patch.setattr(first.storage, "lock", None)
        assert first.put(adapter(1.0)).version == 2
    assert met
    assert [value(first, f"tone@{v}") for v in (1, 2)] == [2.0, 1.0]


@pytest.mark.full
def test_many_writers_lose_nothing(shared):
    def put(i: int) -> None:
        library = Library(shared)
        for j in range(4):
            library.put(adapter(float(10 * i + j)))
            library.put(adapter(float(j)), "same")

    together(4, put)
    library = Library(shared)
    assert library.versions("tone") == list(range(1, 17))
    assert sorted(value(library, f"tone@{v}") for v in range(1, 17)) == sorted(
        float(10 * i + j) for i in range(4) for j in range(4)
    )
    assert {value(library, f"same@{v}") for v in library.versions("same")} == {0.0, 1.0, 2.0, 3.0}
    assert library.verify() == []


def test_the_same_from_many_writers_is_one_version(shared):
    together(4, lambda i: Library(shared).put(adapter(1.0)))
    assert Library(shared).versions("tone") == [1]


def test_a_store_that_overwrites_is_noticed(s3, monkeypatch):
    """So that the tests above show something: without exclusive creation, versions are lost."""
    where = f"{s3}/{uuid4().hex}"
    first, second = Library(where), Library(where)
    real, met = first.storage.fs.pipe_file, []

    def late(path: str, content: bytes, mode: str = "overwrite", **options: Any) -> Any:
        if path.endswith("/1.json") and not met:
            met.append(path)
            second.put(adapter(2.0))
        return real(path, content, **options)

    monkeypatch.setattr(first.storage.fs, "pipe_file", late)
    first.put(adapter(1.0))
    assert first.versions("tone") == [1]


def test_files_of_a_plain_file_system_are_renamed_into_place(tmp_path, monkeypatch):
    library = Library(f"local://{tmp_path}")
    library.put(adapter(1.0))
    real = library.storage.fs.mv

    def full(old: str, new: str, **_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(library.storage.fs, "mv", full)
    with pytest.raises(LibraryError, match="the disk is full"):
        library.put(adapter(2.0))
    monkeypatch.setattr(library.storage.fs, "mv", real)
    assert library.versions("tone") == [1]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".")]
