"""A library: what is put comes back, under names, versions and aliases."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import torch
from library.samples import adapter, files, value

from inlay.errors import LibraryError
from inlay.library.library import Library, default_root


@pytest.fixture
def library(tmp_path) -> Library:
    return Library(tmp_path / "library")


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
    for number in (1.0, 2.0, 3.0):
        library.put(adapter(number))
    assert library.versions("tone") == [1, 2, 3]
    assert library.get("tone").tensors["a"][0, 0] == 3
    assert library.get("tone@1").tensors["a"][0, 0] == 1
    assert library.find("tone@2").version == 2


def test_more_than_nine_versions_are_counted_as_numbers(library):
    for number in range(12):
        library.put(adapter(float(number)))
    assert library.versions("tone") == list(range(1, 13))
    assert library.get("tone").tensors["a"][0, 0] == 11


def test_putting_the_same_again_changes_nothing(library):
    first = library.put(adapter(1.0))
    before = files(library)
    assert library.put(adapter(1.0)) == first
    assert files(library) == before
    library.put(adapter(2.0))
    assert library.put(adapter(1.0)).version == 3, "the newest is another one, so this is a change"
    assert len(list((library.local / "blobs").iterdir())) == 2, "the same content is stored once"


def test_the_list_has_the_newest_of_each_name(library):
    assert library.list() == []
    assert library.names() == []
    for name, number in (("b", 1.0), ("a", 1.0), ("b", 2.0)):
        library.put(adapter(number), name)
    assert [(e.name, e.version) for e in library.list()] == [("a", 1), ("b", 2)]


def test_a_card_says_what_is_in_the_file_and_more(library):
    entry = library.put(adapter(), parameters={"adapter": 6}, note="größer")
    card = json.loads((library.local / "adapters" / "tone" / "1.json").read_text(encoding="utf-8"))
    assert card == entry.card
    assert (card["name"], card["version"], card["method"], card["seed"]) == ("tone", 1, "lora:rank=2", 7)
    assert (card["labels"], card["parameters"], card["note"]) == (["no", "yes"], {"adapter": 6}, "größer")
    assert card["metrics"] == {"validation": {"accuracy": 0.5}}
    assert "history" not in card
    blob = (library.local / "blobs" / f"{entry.sha256}.safetensors").read_bytes()
    assert hashlib.sha256(blob).hexdigest() == entry.sha256
    assert len(blob) == entry.bytes


def test_others_may_read_the_files(library):
    library.put(adapter())
    assert all((library.local / f).stat().st_mode & 0o044 == 0o044 for f in files(library))


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "a"))
    assert default_root() == Library().root == str(tmp_path / "a")
    monkeypatch.delenv("INLAY_LIBRARY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == str(tmp_path / "data" / "inlay")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root() == str(tmp_path / "home" / ".local" / "share" / "inlay")


# --- half-written ----------------------------------------------------------------------------------------------


def test_half_written_files_are_not_seen(library, monkeypatch):
    library.put(adapter(1.0))
    before = files(library)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LibraryError, match="the disk is full"):
        library.put(adapter(2.0))
    monkeypatch.undo()
    assert files(library) == before
    (library.local / "adapters" / "tone" / ".part-x").write_text("{")
    (library.local / "adapters" / "tone" / "notes.json").write_text("{}")
    (library.local / "adapters" / "empty").mkdir()
    assert library.versions("tone") == [1]
    assert library.names() == ["tone"]


# --- aliases ----------------------------------------------------------------------------------------------------


@pytest.fixture
def three(library: Library) -> Library:
    for number in (1.0, 2.0, 3.0):
        library.put(adapter(number))
    return library


def test_an_alias_is_a_version_by_another_name(three):
    three.alias("tone", "prod", 2)
    assert three.aliases("tone") == {"prod": 2}
    assert value(three, "tone@prod") == 2
    assert three.find("tone@prod").aliases == ("prod",)
    assert three.find("tone@3").aliases == ()
    assert value(three, "tone") == 3, "the plain name is the newest still"
    assert [entry.aliases for entry in three.list(all_versions=True)] == [(), ("prod",), ()]


def test_rolling_back_is_moving_the_alias_back(three):
    for version in (1, 3):
        three.alias("tone", "prod", version)
    three.alias("tone", "prod", three.alias_history("tone", "prod")[-2].version)
    assert value(three, "tone@prod") == 1
    history = three.alias_history("tone", "prod")
    assert [move.version for move in history] == [1, 3, 1]
    assert all(datetime.fromisoformat(move.at).tzinfo for move in history)


def test_moving_an_alias_where_it_is_changes_nothing(three):
    three.alias("tone", "prod", 2)
    before = files(three)
    three.alias("tone", "prod", 2)
    assert files(three) == before


def test_an_alias_can_be_removed_and_made_again(three):
    three.alias("tone", "prod", 2)
    three.alias("tone", "prod", None)
    assert three.aliases("tone") == {}
    with pytest.raises(LibraryError, match=r"tone has no version 'prod'\. Valid: 1, 2, 3"):
        three.get("tone@prod")
    three.alias("tone", "prod", 3)
    assert three.aliases("tone") == {"prod": 3}
    assert [move.version for move in three.alias_history("tone", "prod")] == [2, None, 3]


def test_aliases_of_two_names_are_two(three):
    three.put(adapter(9.0), "topic")
    three.alias("tone", "prod", 2)
    three.alias("topic", "prod", 1)
    three.alias("tone", "v2", 2)
    assert three.aliases("tone") == {"prod": 2, "v2": 2}
    assert three.aliases("topic") == {"prod": 1}


@pytest.mark.parametrize("alias", ["", "3", "0x", "-a", ".a", "../a", "a/b", "a b", "ä", "a@b", "x" * 101])
def test_bad_aliases(three, alias):
    before = files(three)
    with pytest.raises(LibraryError, match="an alias starts with a letter"):
        three.alias("tone", alias, 1)
    assert files(three) == before


@pytest.mark.parametrize("version", [0, 4, -1, "x", "../1"])
def test_an_alias_to_a_version_that_is_not_there(three, version):
    with pytest.raises(LibraryError, match="tone has no version"):
        three.alias("tone", "prod", version)
    assert three.aliases("tone") == {}


def test_aliases_that_are_not_there(three):
    three.alias("tone", "prod", 1)
    with pytest.raises(LibraryError, match=r"no alias 'prd'. Did you mean prod\?"):
        three.alias("tone", "prd", None)
    with pytest.raises(LibraryError, match=r"no alias 'prd'. Did you mean prod\?"):
        three.alias_history("tone", "prd")
    with pytest.raises(LibraryError, match="no adapter 'tune'"):
        three.alias("tune", "prod", 1)


def test_an_empty_library_says_how_to_fill_it(tmp_path):
    with pytest.raises(
        LibraryError, match=r"no adapter 'tone' in .*\. It has no adapters yet; inlay train FILE makes one"
    ):
        Library(tmp_path).find("tone")


# --- lineage and the card ---------------------------------------------------------------------------------------


def test_parents(library):
    first = library.put(adapter(1.0))
    assert first.parents == []
    assert library.put(adapter(2.0), parents=[first.ref]).parents == ["tone@1"]
    said = adapter(3.0, about={"parents": [first.sha256]})
    assert library.put(said).parents == [first.sha256]
    assert library.put(adapter(4.0, about={"parents": "nonsense"})).parents == []


def test_what_an_adapter_says_of_itself_does_not_stand_in_for_its_card(library):
    about = {"sha256": "../../secret", "bytes": 0, "name": "other", "version": 9, "digest": "x", "note": "kept"}
    entry = library.put(adapter(1.0, about=about))
    assert library.find("tone") == entry
    assert (entry.name, entry.version, entry.card["note"]) == ("tone", 1, "kept")
    assert value(library, "tone") == 1


@pytest.mark.parametrize("key", ["sha256", "method", "version", "digest", "created"])
def test_what_a_card_says_itself_cannot_be_given(library, key):
    with pytest.raises(LibraryError, match=f"'{key}' is set by the card itself"):
        library.put(adapter(), **{key: "x"})
    assert not library.local.exists()


@pytest.mark.parametrize("more", [{"a": object()}, {"a": {1, 2}}, {"a": "\ud800"}, {"a": "x" * 5_000_000}])
def test_a_card_that_cannot_be_written_leaves_nothing(library, more):
    with pytest.raises(LibraryError, match="the card of tone"):
        library.put(adapter(), **more)
    assert not library.local.exists()


def test_odd_values_in_a_card_are_kept(library):
    more = {"nan": float("nan"), "float": 1e-300, "pair": (1, 2), "keys": {1: "one"}, "text": "é\u2028\n"}
    library.put(adapter(), **more)
    card = library.find("tone").card
    assert (card["float"], card["pair"], card["keys"], card["text"]) == (1e-300, [1, 2], {"1": "one"}, "é\u2028\n")
    assert card["nan"] != card["nan"]


def test_the_name_of_the_base_comes_back_and_is_not_part_of_the_content(library):
    entry = library.put(adapter(1.0), base_name="a/base")
    found = library.get("tone")
    assert found.base_name == "a/base"
    assert library.put(found) == entry
    assert library.put(found, "other").card["base_name"] == "a/base"
    assert adapter(1.0, base_name="x").content() == adapter(1.0).content()


def test_a_library_by_its_file_url(library):
    library.put(adapter(1.0))
    assert value(Library(library.local.as_uri()), "tone") == 1
    assert Library(library.local.as_uri()).root == library.root


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a.b", "A-1_x", "_x", "0", "x" * 100])
def test_good_names(library, name):
    library.put(adapter(), name)
    assert library.get(name).name == name
    assert library.get(f"{name}@1").name == name


BAD = ["", ".", "..", ".hidden", "-rf", "a/b", "../a", "/etc/passwd", "a b", "a\n", "a\0", "ä", "x" * 101, "a@b", "*"]


@pytest.mark.parametrize("name", BAD)
def test_bad_names(library, name):
    with pytest.raises(LibraryError, match="is not a valid name"):
        library.put(adapter(), name)
    assert not library.local.exists()
    if "@" not in name:
        with pytest.raises(LibraryError, match="is not a valid name"):
            library.get(name)


@pytest.mark.parametrize("version", ["", "0", "2", "x", "-1", "1.0", "²", "01x"])
def test_versions_that_are_not_there(library, version):
    library.put(adapter())
    with pytest.raises(LibraryError, match="tone has no version"):
        library.get(f"tone@{version}")


def test_an_unknown_name_is_told_with_its_neighbours(library):
    library.put(adapter())
    with pytest.raises(LibraryError, match=r"no adapter 'tune' in .*Did you mean tone\?"):
        library.get("tune")
