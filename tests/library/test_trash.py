"""Removing is recoverable until gc, and a number never means another adapter."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from library.samples import adapter, blob, card, files, value

from inlay.errors import DamagedError, LibraryError
from inlay.library import aliases
from inlay.library.library import Library


@pytest.fixture
def library(tmp_path: Path) -> Library:
    made = Library(tmp_path / "library")
    for number in (1.0, 2.0, 3.0):
        made.put(adapter(number))
    made.put(adapter(1.0), "topic")
    return made


def refs(entries: list) -> list[str]:
    return [entry.ref for entry in entries]


def test_one_version(library):
    assert refs(library.remove("tone@2")) == ["tone@2"]
    assert library.versions("tone") == [1, 3]
    assert refs(library.removed()) == ["tone@2"]
    with pytest.raises(LibraryError, match="inlay library restore tone@2 brings it back"):
        library.get("tone@2")
    assert value(library, "tone") == 3.0
    assert refs(library.restore("tone@2")) == ["tone@2"]
    assert library.versions("tone") == [1, 2, 3]
    assert value(library, "tone@2") == 2.0
    assert library.removed() == []


def test_a_restored_library_is_as_it_was(library):
    before = files(library)
    library.remove("tone")
    library.remove("topic@1")
    library.restore("topic")
    library.restore("tone")
    assert files(library) == before


def test_a_whole_name(library):
    assert refs(library.remove("tone")) == ["tone@1", "tone@2", "tone@3"]
    assert library.names() == ["topic"]
    assert refs(library.list(all_versions=True)) == ["topic@1"]
    for ref in ("tone", "tone@2", "tone@prod"):
        with pytest.raises(LibraryError, match="tone was removed; unless gc has run since"):
            library.get(ref)
    assert refs(library.restore("tone")) == ["tone@1", "tone@2", "tone@3"]
    assert value(library, "tone") == 3.0


def test_the_newest_of_a_name_may_go(library):
    library.remove("tone@3")
    assert library.find("tone").version == 2
    assert refs(library.list()) == ["tone@2", "topic@1"]


@pytest.mark.parametrize("gc", [False, True])
def test_a_number_is_not_used_again(library, gc):
    library.remove("tone")
    if gc:
        library.gc(grace=-10.0)
    assert library.put(adapter(4.0)).version == 4
    assert library.put(adapter(3.0)).version == 5, "it is gone, so this is a change"
    assert library.versions("tone") == [4, 5]
    assert library.verify() == []


def test_what_an_alias_points_to_stays(library):
    library.alias("tone", "prod", 2)
    before = files(library)
    for ref in ("tone@2", "tone", "tone@prod"):
        with pytest.raises(LibraryError, match="tone@2 is what tone@prod points to; move or remove the alias first"):
            library.remove(ref)
    assert files(library) == before
    library.alias("tone", "prod", 3)
    library.remove("tone@2")
    library.alias("tone", "prod", None)
    library.remove("tone")


def test_an_alias_that_is_moved_there_in_between_wins(library, monkeypatch):
    real = library.storage.replace

    def replace(path: str, content: bytes) -> None:
        if path == "trash/tone/2.json":
            Library(library.root).alias("tone", "prod", 2)
        real(path, content)

    monkeypatch.setattr(library.storage, "replace", replace)
    with pytest.raises(LibraryError, match="tone@prod points to"):
        library.remove("tone@2")
    monkeypatch.undo()
    assert value(library, "tone@prod") == 2.0
    assert library.removed() == []
    assert library.verify() == []


def test_an_alias_does_not_point_to_what_is_removed_in_between(library, monkeypatch):
    library.alias("tone", "prod", 1)
    real = library.storage.create

    def create(path: str, content: bytes) -> bool:
        if path == aliases.move_path("tone", "prod", 2):
            Library(library.root).remove("tone@2")
        return real(path, content)

    monkeypatch.setattr(library.storage, "create", create)
    with pytest.raises(LibraryError, match="tone@2 was removed a moment ago; prod stays"):
        library.alias("tone", "prod", 2)
    assert library.aliases("tone") == {"prod": 1}


def test_what_cannot_be_written_removes_nothing(library, monkeypatch):
    real, before = library.storage.replace, files(library)

    def replace(path: str, content: bytes) -> None:
        if path == "trash/topic/1.json":
            raise LibraryError("no space left")
        real(path, content)

    monkeypatch.setattr(library.storage, "replace", replace)
    with pytest.raises(LibraryError, match="no space left"):
        library.remove("tone", "topic")
    monkeypatch.undo()
    assert files(library) == before
    assert refs(library.remove("tone", "topic")) == ["tone@1", "tone@2", "tone@3", "topic@1"]


def test_what_was_removed_in_one_command_is_restored_in_one(library):
    library.remove("tone", "topic", "tone@1")
    with pytest.raises(LibraryError, match="tune is not in the trash"):
        library.restore("tone", "tune")
    assert library.names() == []
    assert refs(library.restore("tone", "topic", "tone@1")) == ["tone@1", "tone@2", "tone@3", "topic@1"]


def test_what_cannot_all_be_restored_stays_in_the_trash(library, tmp_path):
    content = blob(library, "topic")
    library.remove("tone", "topic")
    content.rename(tmp_path / "away")
    with pytest.raises(LibraryError, match="topic@1 cannot be restored: its content was deleted"):
        library.restore("tone", "topic")
    assert library.names() == []
    (tmp_path / "away").rename(content)
    trashed = library.local / "trash" / "topic" / "1.json"
    trashed.write_bytes(trashed.read_bytes()[:-9])
    with pytest.raises(DamagedError, match="is not a card"):
        library.restore("tone", "topic")
    assert library.names() == []


def test_what_is_not_there(library):
    with pytest.raises(LibraryError, match="no adapter 'tune'"):
        library.remove("tune")
    with pytest.raises(LibraryError, match="tone has no version '7'"):
        library.remove("tone@7")
    library.remove("tone@1")
    with pytest.raises(LibraryError, match="tone@1 was removed"):
        library.remove("tone@1")
    with pytest.raises(LibraryError, match=r"tone@2 is not in the trash. .*Valid: tone@1"):
        library.restore("tone@2")
    with pytest.raises(LibraryError, match=r"topic is not in the trash\. Valid: none"):
        library.restore("topic")
    with pytest.raises(LibraryError, match="is not a valid name"):
        library.restore("../tone")
    with pytest.raises(LibraryError, match="is not a valid name"):
        library.remove("../tone")


def test_a_damaged_version_can_be_removed_but_not_restored(library):
    card(library, 2).write_text("{")
    assert refs(library.remove("tone@2")) == ["tone@2"]
    assert library.versions("tone") == [1, 3]
    assert refs(library.removed()) == ["tone@2"]
    with pytest.raises(DamagedError, match="is not a card"):
        library.restore("tone@2")
    library.gc(grace=-10.0)
    assert library.verify() == []


# --- gc ---------------------------------------------------------------------------------------------------------


def test_gc_deletes_what_is_in_the_trash_and_nothing_else(library):
    library.put(adapter(2.0), "copy")
    gone = blob(library, "tone@2")
    library.remove("tone@2")
    before = files(library)
    told = library.gc(dry_run=True)
    assert files(library) == before
    assert told.files == 2
    assert told.bytes == gone.stat().st_size + (library.local / "trash" / "tone" / "2.json").stat().st_size
    assert library.gc() == told
    assert not gone.exists()
    assert files(library).keys() == before.keys() - {f"blobs/{gone.name}", "trash/tone/2.json"}
    assert library.removed() == []
    with pytest.raises(LibraryError, match="not in the trash"):
        library.restore("tone@2")
    assert [value(library, ref) for ref in ("tone@1", "tone@3", "topic", "copy")] == [1.0, 3.0, 1.0, 2.0]
    assert library.gc() == (0, 0)
    assert library.verify() == []


def test_gc_keeps_a_blob_that_another_version_uses(library):
    library.put(adapter(1.0))
    library.remove("tone@1")
    assert library.gc().files == 1
    assert value(library, "tone@4") == 1.0


def test_gc_keeps_what_is_put_again_after_it_was_removed(library):
    """Its writer may be between blob and card."""
    library.remove("tone@2")
    old = time.time() - 100
    os.utime(library.local / "trash" / "tone" / "2.json", (old, old))
    assert library.gc().files == 1
    assert list((library.local / "blobs").glob("*")) != []


def test_gc_deletes_what_killed_writers_left(library):
    left = [library.local / folder / ".part-abc" for folder in ("blobs", "adapters/tone")]
    for part in left:
        part.write_bytes(b"half")
    assert library.gc() == (0, 0), "it may be one that is being written"
    for part in left:
        os.utime(part, (0, 0))
    assert library.gc() == (2, 8)
    assert not any(part.exists() for part in left)


def test_gc_leaves_files_of_others_alone(library):
    other = library.local / "runs" / "tone" / ".part-x"
    other.parent.mkdir(parents=True)
    other.write_text("")
    note = library.local / "blobs" / "README"
    note.write_text("")
    for file in (other, note):
        os.utime(file, (0, 0))
    library.gc()
    assert other.exists()
    assert note.exists()


def test_gc_deletes_nothing_while_it_cannot_know_what_is_in_use(library):
    library.remove("topic")
    card(library, 2).write_text("{}")
    before = files(library)
    with pytest.raises(DamagedError, match="nothing is deleted while a card cannot be read"):
        library.gc(grace=-10.0)
    assert files(library) == before
    library.remove("tone@2")
    assert library.gc(grace=-10.0).files > 0


def test_a_blob_that_was_set_aside_comes_back_if_a_card_names_it(library):
    """A gc that was killed at the worst moment."""
    (library.local / "aside").mkdir()
    place = blob(library, "tone@2")
    place.rename(library.local / "aside" / place.name)
    assert library.verify() != []
    assert library.gc() == (0, 0)
    assert value(library, "tone@2") == 2.0


def test_gc_while_something_is_restored(library, monkeypatch):
    library.remove("tone@2")
    real = library.storage.replace

    def replace(path: str, content: bytes) -> None:
        if path == "adapters/tone/2.json":
            Library(library.root).gc(grace=-10.0)
        real(path, content)

    monkeypatch.setattr(library.storage, "replace", replace)
    with pytest.raises(LibraryError, match="tone@2 cannot be restored: its content was deleted"):
        library.restore("tone@2")
    monkeypatch.undo()
    assert library.versions("tone") == [1, 3]
    assert library.verify() == []
