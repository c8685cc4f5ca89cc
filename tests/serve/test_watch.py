"""What is served follows the library and what was chosen, and is the same after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve import place as places
from serve.place import TASKS, until

import inlay
from inlay.errors import AdapterError, LibraryError, RunError, SlotError
from inlay.library.library import Library
from inlay.serve.engine import Engine
from inlay.serve.watch import Catalogue, Choices, TaskSelection, Watcher


class Shop:
    """A library that changes, and catalogues of it."""

    def __init__(self, root: Path):
        self.root = root
        self.base, self.library = places.make_library(root)
        self.host = inlay.Host(self.base)
        self.seed = 100

    def add(self, name: str) -> int:
        self.seed += 1
        return places.add(self.host, self.library, name, self.seed, self.base)

    def catalogue(self, selection: TaskSelection | None = None, path: Path | None = None) -> Catalogue:
        engine = Engine(inlay.Host(self.base), self.library)
        made = Catalogue(engine, self.library, selection, Choices.read(path))
        made.sync(force=True)
        return made


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def refs(catalogue: Catalogue) -> dict[str, str]:
    return {served.name: served.ref for served in catalogue.engine.tasks()}


FIRST = {name: f"{name}@1" for name in TASKS}


def test_new_versions_names_and_removals_appear(shop: Shop):
    catalogue = shop.catalogue()
    assert refs(catalogue) == FIRST
    shop.add("sms")
    shop.library.remove("ner")
    assert refs(catalogue) == FIRST, "not before it looks"
    assert catalogue.sync() == []
    assert refs(catalogue) == {name: ref for name, ref in FIRST.items() if name != "ner"} | {"sms": "sms@2"}
    shop.library.restore("ner")
    shop.library.remove("sms@2")
    catalogue.sync()
    assert refs(catalogue) == FIRST


def test_nothing_is_read_while_nothing_changes(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    catalogue = shop.catalogue()
    reads: list[Any] = []
    plain = Library.list
    monkeypatch.setattr(Library, "list", lambda *given, **more: reads.append(1) or plain(*given, **more))
    catalogue.sync()
    assert reads == []
    shop.add("sms")
    catalogue.sync()
    assert reads == [1]


def test_an_alias_decides_and_its_moves_appear(shop: Shop):
    shop.add("sms")
    shop.library.alias("sms", "prod", 1)
    catalogue = shop.catalogue(TaskSelection(alias="prod"))
    assert refs(catalogue) == {"sms": "sms@1"}
    shop.library.alias("sms", "prod", 2)
    shop.library.alias("topic", "prod", 1)
    catalogue.sync()
    assert refs(catalogue) == {"sms": "sms@2", "topic": "topic@1"}
    shop.library.alias("sms", "prod", None)
    catalogue.sync()
    assert refs(catalogue) == {"topic": "topic@1"}


def test_an_alias_can_be_asked_as_soon_as_it_points_to_what_is_served(shop: Shop):
    from inlay.serve.engine_types import Ask

    catalogue = shop.catalogue()
    catalogue.engine.start()
    try:
        with pytest.raises(SlotError):
            catalogue.engine.submit(Ask("sms@prod", "a film"))
        shop.library.alias("sms", "prod", 1)
        catalogue.sync()
        assert catalogue.engine.submit(Ask("sms@prod", "a film")).result(10)["version"] == 1
    finally:
        catalogue.engine.stop()


def test_only_what_is_named_is_served(shop: Shop):
    shop.add("sms")
    shop.add("topic")
    catalogue = shop.catalogue(TaskSelection({"sms": "sms@1", "topic": "topic"}))
    assert refs(catalogue) == {"sms": "sms@1", "topic": "topic@2"}
    shop.add("sms")
    shop.add("topic")
    catalogue.sync()
    assert refs(catalogue) == {"sms": "sms@1", "topic": "topic@3"}


# --- choices ------------------------------------------------------------------------------------------------------


def test_choices_outlive_the_process(shop: Shop):
    path = shop.root / "serving" / "8000.json"
    shop.add("sms")
    first = shop.catalogue(path=path)
    first.put("sms", "sms@1")
    first.put("copy", "topic@1")
    first.take("ner")
    expected = {name: ref for name, ref in FIRST.items() if name != "ner"} | {"copy": "topic@1"}
    assert refs(first) == expected
    shop.add("sms")
    shop.add("ner")
    assert refs(shop.catalogue(path=path)) == expected
    assert refs(shop.catalogue()) != expected, "without the file it is another"
    again = shop.catalogue(path=path)
    again.put("ner", None)
    again.put("sms", None)
    assert json.loads(path.read_text()) == {"put": {"copy": "topic@1"}, "taken": []}
    shop.add("sms")
    again.sync()
    assert refs(again) == FIRST | {"copy": "topic@1", "ner": "ner@2", "sms": "sms@4"}


def test_a_choice_beside_a_list_of_tasks_is_kept(shop: Shop):
    path = shop.root / "choices.json"
    selection = TaskSelection({"sms": "sms"})
    shop.catalogue(selection, path).put("topic", None)
    assert refs(shop.catalogue(selection, path)) == {"sms": "sms@1", "topic": "topic@1"}


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (lambda c: c.put("sms", "sms@9"), LibraryError),
        (lambda c: c.put("sms", "none"), LibraryError),
        (lambda c: c.put("../sms", "sms"), LibraryError),
        (lambda c: c.put("none", None), LibraryError),
        (lambda c: c.put("bare", "bare"), AdapterError),
        (lambda c: c.take("none"), SlotError),
    ],
)
def test_what_cannot_be_chosen_changes_nothing(shop: Shop, what: Callable[[Catalogue], Any], error: type[Exception]):
    shop.host.add("bare", "lora")
    shop.library.put(shop.host.adapter("bare"))
    path = shop.root / "choices.json"
    catalogue = shop.catalogue(path=path)
    before = refs(catalogue)
    with pytest.raises(error):
        what(catalogue)
    assert refs(catalogue) == before
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"put": {}}', '{"put": {"../x": "y"}, "taken": []}', "{\xff"])
def test_a_broken_file_of_choices_says_what_to_do(tmp_path: Path, content: str):
    path = tmp_path / "choices.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(LibraryError, match="remove it to serve the library as it is"):
        Choices.read(path)


def test_a_choice_that_cannot_be_kept_changes_nothing(shop: Shop):
    (shop.root / "file").write_text("")
    catalogue = shop.catalogue(path=shop.root / "file" / "choices.json")
    shop.add("topic")
    before = refs(catalogue)
    for change in (
        lambda: catalogue.put("sms", "sms@1"),
        lambda: catalogue.put("topic", "topic@2"),
        lambda: catalogue.put("copy", "sms@1"),
        lambda: catalogue.take("ner"),
    ):
        with pytest.raises(RunError, match="nothing was changed: the choice cannot be kept: cannot write "):
            change()
        assert refs(catalogue) == before
        assert (catalogue.choices.put, catalogue.choices.taken) == ({}, [])
    catalogue.sync(force=True)
    assert refs(catalogue) == before | {"topic": "topic@2"}, (
        "and a look at the library finds no change of theirs either"
    )


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_told_once_and_disturbs_nobody(shop: Shop):
    shop.host.add("bare", "lora")
    shop.library.put(shop.host.adapter("bare"))
    engine = Engine(inlay.Host(shop.base), shop.library)
    catalogue = Catalogue(engine, shop.library)
    (note,) = catalogue.sync()
    assert note.startswith("bare: ")
    assert refs(catalogue) == FIRST
    shop.add("sms")
    assert catalogue.sync() == []


def test_a_damaged_card_leaves_the_version_that_is_served(shop: Shop):
    catalogue = shop.catalogue()
    shop.add("sms")
    card = shop.root / "library/adapters/sms/2.json"
    card.write_text(card.read_text().replace("ham", "jam"))
    (note,) = catalogue.sync()
    assert "sms@2" in note
    assert refs(catalogue) == FIRST


def test_a_thread_looks_and_survives_a_library_out_of_reach(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    catalogue, told = shop.catalogue(), []
    plain, broken = catalogue.sync, [True]

    def sync() -> list[str]:
        if broken:
            raise OSError("the network is gone")
        return plain()

    monkeypatch.setattr(catalogue, "sync", sync)
    watcher = Watcher(catalogue, 0.01, told.append)
    watcher.start()
    until(lambda: told)
    shop.add("sms")
    broken.clear()
    until(lambda: refs(catalogue)["sms"] == "sms@2")
    watcher.stop()
    assert told == ["the network is gone"]
    assert refs(catalogue) == FIRST | {"sms": "sms@2"}
