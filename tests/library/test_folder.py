"""A library: what is put comes back, under versions; writers at the same time lose nothing; damage is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import inlay
from inlay.errors import AdapterError
from inlay.library.folder import Library, default_root


def adapter(value: float = 0.0, **changes: Any) -> inlay.Adapter:
    made = inlay.Adapter(
        "lora:rank=2",
        "sha256:abc",
        {"a": torch.full((3, 2), value)},
        7,
        "linear",
        "cls",
        ("no", "yes"),
        "tone",
        "classification",
        {"metrics": {"validation": {"accuracy": 0.5}}, "history": [{"step": 1}]},
    )
    return replace(made, **changes)


@pytest.fixture
def library(tmp_path) -> Library:
    return Library(tmp_path / "library")


def files(library: Library) -> list[str]:
    return sorted(str(p.relative_to(library.root)) for p in library.root.rglob("*") if p.is_file())


# --- there and back ---------------------------------------------------------------------------------------------


def test_what_is_put_comes_back(library):
    entry = library.put(adapter(1.5))
    found = library.get("tone")
    assert replace(found, tensors={}) == replace(adapter(), tensors={})
    assert torch.equal(found.tensors["a"], adapter(1.5).tensors["a"])
    assert (entry.name, entry.version) == ("tone", 1)
    assert library.find("tone") == entry


def test_it_may_be_put_under_another_name(library):
    assert library.put(adapter(), "other").name == "other"
    assert library.names() == ["other"]
    assert library.get("other").name == "other"


def test_versions(library):
    for value in (1.0, 2.0, 3.0):
        library.put(adapter(value))
    assert library.versions("tone") == [1, 2, 3]
    assert library.get("tone").tensors["a"][0, 0] == 3
    assert library.get("tone@1").tensors["a"][0, 0] == 1
    assert library.find("tone@2").version == 2


def test_more_than_nine_versions_are_counted_as_numbers(library):
    for value in range(12):
        library.put(adapter(float(value)))
    assert library.versions("tone") == list(range(1, 13))
    assert library.get("tone").tensors["a"][0, 0] == 11


def test_putting_the_same_again_changes_nothing(library):
    first = library.put(adapter(1.0))
    before = files(library)
    assert library.put(adapter(1.0)) == first
    assert files(library) == before
    library.put(adapter(2.0))
    assert library.put(adapter(1.0)).version == 3, "the newest is another one, so this is a change"
    assert len(list((library.root / "blobs").iterdir())) == 2, "the same content is stored once"


def test_the_list_has_the_newest_of_each_name(library):
    assert library.list() == []
    assert library.names() == []
    for name, value in (("b", 1.0), ("a", 1.0), ("b", 2.0)):
        library.put(adapter(value), name)
    assert [(e.name, e.version) for e in library.list()] == [("a", 1), ("b", 2)]


def test_a_card_says_what_is_in_the_file_and_more(library):
    entry = library.put(adapter(), parameters={"adapter": 6}, note="größer")
    card = json.loads((library.root / "adapters" / "tone" / "1.json").read_text(encoding="utf-8"))
    assert card == entry.card
    assert (card["name"], card["version"], card["method"], card["seed"]) == ("tone", 1, "lora:rank=2", 7)
    assert (card["labels"], card["parameters"], card["note"]) == (["no", "yes"], {"adapter": 6}, "größer")
    assert card["metrics"] == {"validation": {"accuracy": 0.5}}
    assert "history" not in card
    blob = (library.root / "blobs" / f"{entry.sha256}.safetensors").read_bytes()
    assert hashlib.sha256(blob).hexdigest() == entry.sha256
    assert len(blob) == entry.bytes


def test_others_may_read_the_files(library):
    library.put(adapter())
    assert all((library.root / f).stat().st_mode & 0o044 == 0o044 for f in files(library))


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "a"))
    assert default_root() == Library().root == tmp_path / "a"
    monkeypatch.delenv("INLAY_LIBRARY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "inlay"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home" / ".local" / "share" / "inlay"


# --- writers at the same time -----------------------------------------------------------------------------------

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
    library.put(Adapter("lora", "sha256:0", {"a": torch.tensor([number, i])}, name="shared"))
    library.put(Adapter("lora", "sha256:0", {"a": torch.tensor([i])}, name="same"))
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    library, n = Library(tmp_path / "library"), 3
    command = [sys.executable, "-c", _WRITER, str(library.root)]
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
    assert {library.get(f"same@{v}").tensors["a"].item() for v in library.versions("same")} == set(range(15))
    assert not [f for f in files(library) if Path(f).name.startswith(".")]


def test_a_number_that_is_taken_in_between_is_not_overwritten(library, monkeypatch):
    library.put(adapter(1.0))
    real = Library.versions
    stale = [1]

    def versions(self: Library, name: str) -> list[int]:
        return stale if real(self, name) == [1, 2] else real(self, name)

    other = Library(library.root)
    other.put(adapter(2.0))
    monkeypatch.setattr(Library, "versions", versions)
    entry = library.put(adapter(3.0))
    monkeypatch.undo()
    assert entry.version == 3
    assert library.get("tone@2").tensors["a"][0, 0] == 2


def test_half_written_files_are_not_seen(library, monkeypatch):
    library.put(adapter(1.0))
    before = files(library)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AdapterError, match="the disk is full"):
        library.put(adapter(2.0))
    monkeypatch.undo()
    assert files(library) == before
    (library.root / "adapters" / "tone" / ".part-x").write_text("{")
    (library.root / "adapters" / "tone" / "notes.json").write_text("{}")
    (library.root / "adapters" / "empty").mkdir()
    assert library.versions("tone") == [1]
    assert library.names() == ["tone"]


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bit", "short", "empty"])
def test_a_damaged_blob_is_noticed(library, how):
    entry = library.put(adapter(1.0))
    blob = library.root / "blobs" / f"{entry.sha256}.safetensors"
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes({"bit": bytes(content), "short": bytes(content[:-4]), "empty": b""}[how])
    with pytest.raises(AdapterError, match="tone@1 is damaged") as caught:
        library.get("tone")
    assert str(blob) in str(caught.value)


def test_putting_it_again_mends_a_damaged_blob(library):
    entry = library.put(adapter(1.0))
    (library.root / "blobs" / f"{entry.sha256}.safetensors").write_bytes(b"nothing")
    assert library.put(adapter(1.0)) == entry
    assert library.get("tone").tensors["a"][0, 0] == 1


def test_a_blob_that_is_gone(library):
    entry = library.put(adapter())
    (library.root / "blobs" / f"{entry.sha256}.safetensors").unlink()
    with pytest.raises(AdapterError, match="tone@1 cannot be read"):
        library.get("tone")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"sha256": "x"}', b"\xff\xfe"])
def test_a_card_that_is_none(library, text):
    library.put(adapter())
    path = library.root / "adapters" / "tone" / "1.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(AdapterError, match="is not a card") as caught:
        library.get("tone")
    assert str(path) in str(caught.value)


def test_a_card_that_points_outside(library):
    """A card comes with the folder; it must not make Inlay read some other file."""
    library.put(adapter())
    path = library.root / "adapters" / "tone" / "1.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "sha256": "../../secret"}))
    adapter().save(library.root.parent / "secret.safetensors")
    with pytest.raises(AdapterError):
        library.get("tone")


def test_a_library_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AdapterError, match="cannot write"):
            Library(root).put(adapter())
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "adapters").write_text("")
    with pytest.raises(AdapterError, match="cannot write"):
        Library(tmp_path / "library").put(adapter())


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a.b", "A-1_x", "_x", "0", "x" * 100])
def test_good_names(library, name):
    library.put(adapter(), name)
    assert library.get(name).name == name
    assert library.get(f"{name}@1").name == name


BAD = ["", ".", "..", ".hidden", "-rf", "a/b", "../a", "/etc/passwd", "a b", "a\n", "a\0", "ä", "x" * 101, "a@b", "*"]


@pytest.mark.parametrize("name", BAD)
def test_bad_names(library, name):
    with pytest.raises(AdapterError, match="a name has letters"):
        library.put(adapter(), name)
    assert not library.root.exists()
    if "@" not in name:
        with pytest.raises(AdapterError, match="a name has letters"):
            library.get(name)


@pytest.mark.parametrize("version", ["", "0", "2", "x", "-1", "1.0", "²", "01x"])
def test_versions_that_are_not_there(library, version):
    library.put(adapter())
    with pytest.raises(AdapterError, match="tone has no version"):
        library.get(f"tone@{version}")


def test_an_unknown_name_is_told_with_its_neighbours(library):
    library.put(adapter())
    with pytest.raises(AdapterError, match=r"no adapter 'tune' in .*did you mean tone\?"):
        library.get("tune")
