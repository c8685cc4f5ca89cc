"""Every planted corruption ends in a named error, is found by verify, and harms nothing else; a full disk too."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from library.samples import adapter, at_step, blob, card, files, value

from inlay import Adapter
from inlay.errors import AdapterError, DamagedError, InlayError, LibraryError
from inlay.library import aliases, cards, header
from inlay.library.library import Library


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.chdir(tmp_path)
    made = Library(tmp_path / "library")
    for number in (1.0, 2.0):
        made.put(adapter(number))
    made.put(adapter(5.0), "topic")
    made.alias("topic", "prod", 1)
    return made


def signed(library: Library, **changes: Any) -> None:
    """Edit a card as someone would who knows how digests are made."""
    path = card(library)
    found = {**json.loads(path.read_text()), **changes}
    name, number = found.pop("name"), found.pop("version")
    found.pop("digest")
    path.write_bytes(cards.encode(found, name, number))


def planted(library: Library, content: bytes) -> None:
    """Put any bytes in the place of an adapter, with a card that names them by their true hash."""
    sha256 = hashlib.sha256(content).hexdigest()
    (library.local / "blobs" / f"{sha256}.safetensors").write_bytes(content)
    signed(library, sha256=sha256, bytes=len(content))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def archive() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb()))
        file.writestr("archive/data/0", b"\0" * 10_000_000)
    return target.getvalue()


def file_of(header: Any, tensors: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + tensors


INSIDE = {"inlay": json.dumps({"format": 1})}
F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BLOBS: dict[str, bytes] = {
    "a pickle": pickle.dumps(Bomb()),
    "an old pickle": pickle.dumps(Bomb(), protocol=0),
    "a torch file": archive(),
    "nothing": b"",
    "seven bytes": b"1234567",
    "a page": b"<!DOCTYPE html><html>not found</html>",
    "a header of absurd size": struct.pack("<Q", 2**63) + b"{}",
    "a header of 100 GB": struct.pack("<Q", 10**11) + b"{}",
    "a header longer than the file": file_of({}, length=1000),
    "a header longer than any": file_of(b"{" + b" " * (header.LIMIT + 1) + b"}"),
    "a header that is not JSON": file_of(b"{" * 64),
    "a header that is too deep": file_of(b"[" * 100_000),
    "a header that is not text": file_of(b"\xff\xfe" * 32),
    "a header that is a list": file_of([]),
    "a header without places": file_of({"a": {"dtype": "F32", "shape": [1]}, "__metadata__": INSIDE}, b"1234"),
    "a tensor that is a number": file_of({"a": 3, "__metadata__": INSIDE}),
    "negative places": file_of({"a": {**F32, "data_offsets": [-4, 0]}, "__metadata__": INSIDE}),
    "metadata that is a text": file_of({"__metadata__": "x"}),
    "a name twice": file_of(b'{"a": %s, "a": %s}' % ((json.dumps(F32).encode(),) * 2), b"1234"),
    "tensors beyond the end": file_of({"a": {**F32, "shape": [2**40], "data_offsets": [0, 2**42]}}, b"1234"),
    "tensors before the end": file_of({"a": F32}, b"12345678"),
    "tensors of a shape that is too large": file_of(
        {"a": {**F32, "shape": [2**40]}, "__metadata__": {"inlay": json.dumps({})}}, b"1234"
    ),
    "someone else's safetensors": file_of({"a": F32}, b"1234"),
}


@pytest.mark.parametrize("name", BLOBS)
def test_what_is_not_an_adapter(library, name):
    """Under its true hash: the hash does not say what is in a file."""
    planted(library, BLOBS[name])
    refused(library, "tone@1", DamagedError, "tone@1 is damaged")
    assert not Path("exploded").exists()
    with pytest.raises(AdapterError, match="a source"):
        Adapter.of(BLOBS[name], "a source")
    Path("file").write_bytes(BLOBS[name])
    with pytest.raises(AdapterError):
        Adapter.read("file")


def test_the_pickle_would_explode(library):
    """So that the test above shows something."""
    pickle.loads(BLOBS["a pickle"])
    assert Path("exploded").exists()


@pytest.mark.parametrize("name", ["a pickle", "a torch file", "a page"])
def test_known_files_are_named(name):
    with pytest.raises(AdapterError, match=r"never opens|a page"):
        Adapter.of(BLOBS[name], "it")


# --- files that were changed ------------------------------------------------------------------------------------


def refused(library: Library, ref: str, error: type[InlayError], *parts: str) -> None:
    """The error of getting it, and one problem in verify; everything else still works."""
    with pytest.raises(error) as caught:
        library.get(ref)
    assert caught.value.__cause__ is None
    for part in parts:
        assert part in str(caught.value)
    problems = library.verify()
    assert [problem.ref for problem in problems] == [ref]
    assert str(library.local) in problems[0].path
    assert library.verify(ref) == problems
    assert library.verify(ref.partition("@")[0]) == problems
    assert library.verify("topic") == []
    assert (value(library, "tone@2"), value(library, "topic@prod")) == (2.0, 5.0)


Change = Callable[[Library], object]
CHANGES: dict[str, tuple[Change, str]] = {
    "a truncated blob": (lambda x: os.truncate(blob(x, "tone@1"), 100), "is not what its name says"),
    "an empty blob": (lambda x: os.truncate(blob(x, "tone@1"), 0), "is not what its name says"),
    "a longer blob": (lambda x: os.truncate(blob(x, "tone@1"), blob(x, "tone@1").stat().st_size + 1), "bytes"),
    "a huge blob": (lambda x: os.truncate(blob(x, "tone@1"), 2**42), "bytes"),
    "a flipped bit in the tensors": (lambda x: flip(blob(x, "tone@1"), -1), "is not what its name says"),
    "a flipped bit in the header": (lambda x: flip(blob(x, "tone@1"), 40), "is not what its name says"),
    "a flipped bit in the length": (lambda x: flip(blob(x, "tone@1"), 7), "is not what its name says"),
    "a swapped blob": (lambda x: shutil.copy(blob(x, "topic"), blob(x, "tone@1")), "is"),
    "a missing blob": (lambda x: blob(x, "tone@1").unlink(), "is missing"),
    "a folder in its place": (lambda x: (blob(x, "tone@1").unlink(), blob(x, "topic").parent), "is missing"),
    "a truncated card": (lambda x: os.truncate(card(x), 200), "is not a card"),
    "an empty card": (lambda x: os.truncate(card(x), 0), "is not a card"),
    "a card as long as a tombstone": (lambda x: os.truncate(card(x), len(cards.GONE)), "is not a card"),
    "a huge card": (lambda x: os.truncate(card(x), 2**42), "bytes"),
    "a flipped bit in a card": (lambda x: flip(card(x), card(x).read_bytes().index(b"lora") + 1), "it was changed"),
    "a swapped card": (lambda x: shutil.copy(card(x, 2), card(x, 1)), "is the card of 'tone' 2, not of tone 1"),
    "a swapped card of another name": (lambda x: shutil.copy(card(x, 1, "topic"), card(x)), "is the card of 'topic' 1"),
    "a label edited": (lambda x: edit(card(x), '"yes"', '"Yes"'), "it was changed after it was written"),
    "a metric edited": (lambda x: edit(card(x), "0.5", "0.9"), "it was changed after it was written"),
    "a key added": (lambda x: edit(card(x), '"seed"', '"good": true,\n  "seed"'), "it was changed"),
    "a card that points outside": (lambda x: edit(card(x), '"sha256": "', '"sha256": "../../'), "SHA-256"),
    "a version that is true": (lambda x: edit(card(x), '"version": 1', '"version": true'), "is not a card: version"),
    "a card in the depth": (lambda x: card(x).write_text("[" * 100_000), "is not a card"),
    "a card with a huge number": (lambda x: card(x).write_text("9" * 100_000), "is not a card"),
    "a card that is no text": (lambda x: card(x).write_bytes(b"\xff\xfe{}"), "is not a card"),
    "a card without a size": (lambda x: signed(x, bytes="many"), "is not a card: bytes is 'many'"),
    "a card with a negative size": (lambda x: signed(x, bytes=-1), "by its SHA-256 and size"),
    "a card with a size too small": (lambda x: signed(x, bytes=10), "bytes"),
    "a card of another blob": (lambda x: signed(x, sha256=x.find("topic").sha256), "name is 'tone'"),
    "a signed card of another name": (lambda x: signed(x, name="../tone"), "is the card of '../tone' 1"),
    "a signed card of another version": (lambda x: signed(x, version=7), "is the card of 'tone' 7"),
    "another method": (lambda x: signed(x, method="lora:rank=4"), "method is 'lora:rank=4'"),
    "another task": (lambda x: signed(x, task="tagging"), "task is 'tagging'"),
    "other labels": (lambda x: signed(x, labels=["yes", "no"]), "labels is ['yes', 'no']"),
    "labels that are none": (lambda x: signed(x, labels=[1, 2]), "is not a card: labels"),
    "another head": (lambda x: signed(x, head="mlp"), "head is 'mlp'"),
    "no head": (lambda x: signed(x, head=None), "head is None"),
    "another pool": (lambda x: signed(x, pool="mean"), "pool is 'mean'"),
    "another base": (lambda x: signed(x, base="sha256:other"), "base is 'sha256:other'"),
    "another seed": (lambda x: signed(x, seed=8), "seed is 8"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(library, name):
    change, message = CHANGES[name]
    change(library)
    refused(library, "tone@1", DamagedError, "tone", message)


def test_a_pipe_in_the_place_of_a_file_does_not_wait_for_ever(library):
    for path in (card(library), blob(library, "tone@2")):
        path.unlink()
        os.mkfifo(path)
    for ref in ("tone@1", "tone@2"):
        with pytest.raises(LibraryError, match=r"not a plain file|is not what its name says|not a card"):
            library.get(ref)
    assert {problem.ref for problem in library.verify()} == {"tone@1", "tone@2"}


def test_an_intact_library_is_clean(library):
    """So that what is found above is what was planted."""
    library.remove("tone@1")
    library.alias("topic", "prod", None)
    library.put(adapter(7.0), "other", parents=["tone@1"])
    before = files(library)
    assert library.verify() == []
    for ref in ("tone", "tone@2", "topic", "other@1"):
        assert library.verify(ref) == []
    assert files(library) == before


def test_an_empty_library_is_clean(tmp_path):
    assert Library(tmp_path / "nowhere").verify() == []
    with pytest.raises(LibraryError, match="no adapter 'tone'"):
        Library(tmp_path / "nowhere").verify("tone")


def test_putting_it_again_mends_a_damaged_blob(library):
    blob(library).write_bytes(b"nothing")
    assert library.put(adapter(2.0)).version == 2
    assert value(library, "tone") == 2.0


def test_a_damaged_card_does_not_stop_writers(library):
    card(library, 2).write_text("{")
    assert library.put(adapter(2.0)).version == 3
    assert value(library, "tone") == 2.0


def test_one_damaged_card_does_not_hide_the_others(library):
    card(library, 2).write_text("{")
    with pytest.raises(DamagedError):
        library.list()
    problems: list[Any] = []
    assert [entry.ref for entry in library.list(damaged=problems)] == ["topic@1"]
    assert [problem.ref for problem in problems] == ["tone@2"]


def test_files_that_are_nobodys(library):
    (library.local / "adapters" / "a b").mkdir()
    shutil.copy(card(library), library.local / "adapters" / "a b" / "1.json")
    (library.local / "adapters" / "tone" / "notes.txt").write_text("")
    (library.local / "blobs" / "x.safetensors").write_text("")
    assert sorted(Path(problem.path).name for problem in library.verify()) == ["1.json", "notes.txt", "x.safetensors"]
    assert library.names() == ["tone", "topic"]


def test_a_blob_without_a_card_is_checked_too(library):
    orphan = blob(library, "tone@2")
    card(library, 2).unlink()
    assert library.verify() == [], "the newest card may not have been written yet"
    flip(orphan, -1)
    assert [problem.path for problem in library.verify()] == [str(orphan)]


def test_a_card_that_is_lost(library):
    card(library, 1).unlink()
    assert [problem.message for problem in library.verify()] == [f"tone@1 is lost: {card(library, 1)} is missing"]


def test_a_card_of_an_absurd_version(library):
    """It is not counted up to."""
    (library.local / "adapters" / "tone" / f"{10**15 - 1}.json").write_text("{}")
    assert [problem.ref for problem in library.verify()] == [f"tone@{10**15 - 1}", "tone@3"]
    with pytest.raises(LibraryError, match="tone has no number left"):
        library.put(adapter(3.0))
    assert value(library, "tone@2") == 2.0


def test_an_alias_that_lost_a_part_of_its_history(library):
    library.put(adapter(6.0), "topic")
    library.alias("topic", "prod", 2)
    (library.local / "adapters" / "topic" / "aliases" / "prod" / "1.json").unlink()
    assert [problem.message[:38] for problem in library.verify()] == ["topic@prod has lost a part of its hist"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": "1", "at": ""}',
        '{"version": true, "at": ""}',
        '{"version": -1, "at": "x"}',
        "9" * 9999,
    ],
)
def test_a_damaged_alias(library, text):
    move = library.local / "adapters" / "topic" / "aliases" / "prod" / "1.json"
    move.write_text(text)
    with pytest.raises(DamagedError, match=r"does not say where the alias points|bytes"):
        library.get("topic@prod")
    assert [problem.ref for problem in library.verify()] == ["topic@prod"]
    assert value(library, "tone") == 2.0


def test_a_damaged_alias_can_be_moved_and_stops_no_other(library):
    library.alias("topic", "next", 1)
    for alias in ("prod", "next"):
        (library.local / "adapters" / "topic" / "aliases" / alias / "1.json").write_text("{")
    library.alias("topic", "prod", 1)
    library.alias("topic", "next", None)
    assert library.aliases("topic") == {"prod": 1}
    assert value(library, "topic@prod") == 5.0


def test_no_changed_bit_moves_an_alias(library):
    for number in (6.0, 7.0):
        library.put(adapter(number), "topic")  # 1, 2 and 3 are one bit from one another
    move = library.local / "adapters" / "topic" / "aliases" / "prod" / "1.json"
    written = move.read_bytes()
    for place in range(len(written)):
        for bit in range(8):
            move.write_bytes(written[:place] + bytes([written[place] ^ 1 << bit]) + written[place + 1 :])
            assert [problem.ref for problem in library.verify("topic")] == ["topic@prod"], (place, bit)
    move.write_bytes(written)
    assert library.verify() == []


def test_a_move_of_another_alias_is_not_taken_for_this_ones(library):
    library.put(adapter(6.0), "topic")
    library.alias("topic", "next", 2)
    moves = library.local / "adapters" / "topic" / "aliases"
    shutil.copy(moves / "next" / "1.json", moves / "prod" / "1.json")
    with pytest.raises(DamagedError, match="its digest does not match"):
        library.get("topic@prod")


def test_an_alias_that_points_to_nothing(library):
    move = library.local / "adapters" / "topic" / "aliases" / "prod" / "1.json"
    path = aliases.move_path("topic", "prod", 1)
    move.write_bytes(aliases.encode(aliases.Move(9, "2026-01-01T00:00:00+00:00"), path))
    assert [problem.message for problem in library.verify()] == ["topic@prod points to version 9, which is not there"]
    with pytest.raises(LibraryError, match="topic has no version 'prod'"):
        library.get("topic@prod")


def test_links_do_not_lead_out(library, tmp_path):
    """A folder that is a link is not looked into, and a card that is one is held to the same checks."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "1.json").write_text('{"password": 1}')
    (library.local / "adapters" / "out").symlink_to(tmp_path / "secret")
    assert library.names() == ["tone", "topic"]
    card(library).unlink()
    card(library).symlink_to(tmp_path / "secret" / "1.json")
    with pytest.raises(DamagedError) as caught:
        library.get("tone@1")
    assert "password" not in str(caught.value)


# --- bombs ------------------------------------------------------------------------------------------------------


def empty_pair(name: str) -> dict[str, torch.Tensor]:
    return {f"{name}#index": torch.zeros(0, dtype=torch.int32), f"{name}#value": torch.zeros(0)}


@pytest.mark.parametrize("rank", [10**8, 10**15, 10**30])
def test_a_sparse_tensor_that_would_unpack_to_more_than_there_is(library, rank):
    """A few bytes and a spec stand for any number of zeros."""
    host = tiny.host()
    host.add("a", "lora:rank=2", labels=2)
    good = host.adapter("a")
    names = [name for name in good.tensors if not name.startswith("head.")]
    pairs = {key: tensor for name in names for key, tensor in empty_pair(name).items()}
    head = {name: tensor for name, tensor in good.tensors.items() if name.startswith("head.")}
    fields = (good.seed, good.head, good.pool, good.labels, "bomb", good.task)
    library.put(Adapter(f"lora:rank={rank}", good.base, pairs | head, *fields))
    with pytest.raises(AdapterError, match="would unpack to"):
        host.load(library.get("bomb"))
    library.put(Adapter(f"lora:rank={rank}", good.base, good.tensors, *fields))
    with pytest.raises(AdapterError, match="in the adapter"):
        host.load(library.get("bomb"))
    library.put(Adapter("lora:rank=2", good.base, pairs | head, *fields))
    host.load(library.get("bomb"))  # the same at an honest size


# --- a full disk ------------------------------------------------------------------------------------------------


def test_no_room_at_any_step(library):
    """Every call that changes the disk fails once: an error, nothing changed, and the same again works."""
    step, steps = 0, set()
    while True:
        step += 1
        before = files(library)

        def full(name: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with at_step(step, full) as seen:
            try:
                library.put(adapter(10.0 + step))
            except LibraryError as error:
                failed = str(error)
            else:
                failed = ""
        assert not failed or "No space left on device" in failed
        if len(seen) < step:
            break
        steps.add(seen[step - 1])
        after = files(library)
        assert {path: after.get(path) for path in before} == before, "nothing is lost"
        assert library.verify() == []
        if failed:
            new = {path for path in after.keys() - before.keys() if path.startswith("adapters/")}
            assert not new or seen[step - 1] == "os.fsync", "a card is there only if all but the last sync went well"
        found = library.put(adapter(10.0 + step))
        assert value(library, found.ref) == 10.0 + step
    assert steps == {"tempfile.mkstemp", "os.fdopen", "os.fsync", "os.chmod", "os.link", "os.replace", "os.unlink"}
    assert library.versions("tone") == list(range(1, len(library.versions("tone")) + 1))


@pytest.mark.parametrize("limit", [0, 100, 1000, 5000])
def test_a_disk_that_is_full_in_the_middle_of_a_file(library, limit):
    before = files(library)
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, kept[1]))
    try:
        with pytest.raises(LibraryError, match=r"cannot write .*File too large"):
            library.put(adapter(tensors={"a": torch.zeros(100, 100)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert files(library) == before
    assert library.put(adapter(tensors={"a": torch.zeros(100, 100)})).version == 3


def test_a_library_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LibraryError, match="cannot write"):
            Library(root).put(adapter())
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "adapters").write_text("")
    with pytest.raises(LibraryError, match="cannot write"):
        Library(tmp_path / "library").put(adapter())
