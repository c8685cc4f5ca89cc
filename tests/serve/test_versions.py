"""Several versions of a task at once: asked by number or alias, named at the start, or put beside the usual one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve import place as places
from serve.place import TEXT, Place

import inlay
from inlay.cli import serve
from inlay.errors import LibraryError, SlotError
from inlay.library.library import Library
from inlay.serve.watch import Catalogue, Choices, TaskSelection


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Library]:
    base, library = places.make_library(tmp_path_factory.mktemp("versions"))
    host = inlay.Host(base)
    for seed in (50, 51):
        places.add(host, library, "sms", seed, base)
    library.alias("sms", "prod", 2)
    return base, library


@pytest.fixture
def place(made: tuple[str, Library], tmp_path: Path) -> Iterator[Place]:
    with places.real(*made, choices=Choices(tmp_path / "choices.json")) as one:
        yield one


def call(place: Place, method: str, path: str, body: Any = None) -> httpx.Response:
    async def go() -> httpx.Response:
        async with place.client() as client:
            return await client.request(method, path, json=body)

    return asyncio.run(go())


def versions(place: Place, *tasks: str) -> list[Any]:
    found = call(place, "POST", "/v1/predict", {"requests": [{"task": one, "text": TEXT} for one in tasks]})
    return [one.get("version") or one["error"]["message"] for one in found.json()["results"]]


def test_any_version_and_alias_of_the_library_can_be_asked_at_once(place: Place, made: tuple[str, Library]):
    assert versions(place, "sms", "sms@1", "sms@prod", "sms@3", "sms@2") == [3, 1, 2, 3, 2]
    host = inlay.Host(made[0])
    for number in (1, 2):
        host.load(made[1].get(f"sms@{number}"), f"sms@{number}")
    body = {"tasks": ["sms@1", "sms@2"], "text": TEXT}
    (found,) = call(place, "POST", "/v1/predict", body).json()["results"]
    for name, answer in found["results"].items():
        (expected,) = host.predict([(name, TEXT)])
        assert (answer["task"], answer["score"]) == (name, pytest.approx(expected["score"], abs=1e-4))
    assert versions(place, "sms@4", "sms@beta", "no@1", "sms@x/y") == [
        "'sms' is served at version 3, not at '4'",
        "'sms' is served at version 3, not at 'beta'",
        "no task 'no' is served. Valid: ask, ner, sms, sms@1, sms@2, sms@prod, stars, topic",
        "'sms' is served at version 3, not at 'x/y'",
    ]


def test_all_means_each_task_once(place: Place):
    assert versions(place, "sms@1") == [1]
    (found,) = call(place, "POST", "/v1/predict", {"tasks": "all", "text": TEXT}).json()["results"]
    assert set(found["results"]) == set(places.TASKS)


def test_one_card_can_be_asked_for(place: Place):
    cards = [call(place, "GET", f"/v1/tasks/{name}").json() for name in ("sms", "sms@prod", "sms@1")]
    assert [(card["name"], card["ref"]) for card in cards] == [
        ("sms", "sms@3"),
        ("sms@prod", "sms@2"),
        ("sms@1", "sms@1"),
    ]
    missing = call(place, "GET", "/v1/tasks/smss")
    assert (missing.status_code, "Did you mean sms" in missing.text) == (404, True)


def test_a_task_that_is_taken_away_is_so_in_all_versions(place: Place):
    assert versions(place, "sms@1", "sms@prod") == [1, 2]
    assert call(place, "DELETE", "/v1/tasks/sms").status_code == 200
    assert [str(one)[:19] for one in versions(place, "sms@1", "sms@prod", "sms@2")] == ["no task 'sms' is se"] * 3
    assert place.service.catalogue.sync(force=True) == []
    assert {one.name for one in place.service.engine.tasks()} == set(places.TASKS) - {"sms"}


@pytest.mark.parametrize("here", [True, False])
def test_a_version_that_was_put_stays_without_its_task(here: bool, place: Place):
    catalogue = place.service.catalogue
    assert versions(place, "sms@1", "sms@2") == [1, 2]
    if here:
        assert call(place, "PUT", "/v1/tasks/sms@1").json()["ref"] == "sms@1"
    else:  # on another replica
        catalogue.adopt(lambda: catalogue.choices.put.update({"sms@1": "sms@1"}) is None)
    assert call(place, "DELETE", "/v1/tasks/sms").status_code == 200
    for _ in range(2):
        assert {served.name for served in place.service.engine.tasks()} == set(places.TASKS) - {"sms"} | {"sms@1"}
        catalogue.sync(force=True)


def test_a_version_can_be_put_beside_the_usual_one(place: Place, made: tuple[str, Library]):
    assert call(place, "PUT", "/v1/tasks/sms@1").json()["ref"] == "sms@1"
    assert call(place, "PUT", "/v1/tasks/sms@1", {"ref": "sms@2"}).status_code == 404
    assert call(place, "PUT", "/v1/tasks/sms@@").status_code == 404
    kept = Choices.read(place.service.catalogue.choices.path)
    assert kept.put == {"sms@1": "sms@1"}
    place.service.catalogue.sync(force=True)
    assert versions(place, "sms", "sms@1") == [3, 1]
    assert call(place, "DELETE", "/v1/tasks/sms@1").status_code == 200
    assert versions(place, "sms")[0] == 3
    assert "not at '1'" in versions(place, "sms@1")[0]


def test_a_brought_alias_follows_its_moves(made: tuple[str, Library]):
    with places.real(*made) as place:
        assert versions(place, "sms@prod") == [2]
        made[1].alias("sms", "prod", 1)
        try:
            place.service.catalogue.sync()
            assert versions(place, "sms@prod") == [1]
        finally:
            made[1].alias("sms", "prod", 2)


def test_versions_named_at_the_start_are_those_that_can_be_asked(made: tuple[str, Library]):
    selection = serve._task_selection("sms@1,sms@2,topic", None)
    assert selection == TaskSelection({"sms": "sms@1", "sms@2": "sms@2", "topic": "topic"})
    assert serve._task_selection("sms,sms@1", "prod") == TaskSelection({"sms": "sms@prod", "sms@1": "sms@1"}, "prod")
    with pytest.raises(LibraryError, match="names sms@1 twice"):
        serve._task_selection("sms@1,topic,sms@1", None)
    with places.real(*made, selection=selection) as place:
        assert versions(place, "sms", "sms@1", "sms@2") == [1, 1, 2]
        assert "not at '3'" in versions(place, "sms@3")[0]


def test_an_alias_alone_is_served_alone(made: tuple[str, Library]):
    with places.real(*made, selection=TaskSelection(alias="prod")) as place:
        assert versions(place, "sms", "sms@prod", "sms@2") == [2, 2, 2]
        assert "not at '1'" in versions(place, "sms@1")[0]


def test_bringing_reads_nothing_for_what_the_library_does_not_have(place: Place, monkeypatch: pytest.MonkeyPatch):
    catalogue: Catalogue = place.service.catalogue
    monkeypatch.setattr(catalogue.library, "find", None)
    catalogue.bring(["sms@9", "no@1", "../x@1", "sms@", "@", "sms@none"])
    with pytest.raises(SlotError):
        place.service.engine.task("sms@9")
