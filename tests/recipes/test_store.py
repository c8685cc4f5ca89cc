"""The file of a recipe's runs: cut off by a clock, half finished, damaged, somebody else's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recipes import cooking
from training import work

import inlay
from inlay.errors import InlayError
from inlay.recipes.api import run
from inlay.recipes.plan import Changes

ONE = Changes(only=["First"], rows=["tuned", "eight"], seeds=1)


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


def unfinished(found: Any) -> list[str]:
    return [text for text in found.differences if text.startswith("unfinished: ")]


def test_a_clock_stops_a_recipe_and_the_next_run_goes_on(
    host: inlay.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own, data, store = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES), tmp_path / "r.sqlite"
    nothing = run(host, own, data, ONE, store=store, minutes=0)
    assert unfinished(nothing) == ["unfinished: 3 of 3 runs; run it again to continue"]
    assert all(cell.ours is None for line in nothing.lines for cell in line.cells.values())
    time = iter(range(10_000))
    monkeypatch.setattr("inlay.recipes.api._now", lambda: float(next(time)))
    steps: list[str] = []

    def hear(event: dict[str, Any]) -> None:
        steps.extend([event["run"]] if event["event"] == "step" else [])

    part = run(host, own, data, ONE, store=store, minutes=9 / 60, slots=1, callbacks=[hear])
    taken = len(steps)
    assert 6 < taken < 15
    assert len(unfinished(part)) == 1
    assert unfinished(part) != unfinished(nothing)
    whole = run(host, own, data, ONE, store=store, slots=1, callbacks=[hear])
    fresh = run(host, own, data, ONE, slots=1)
    assert unfinished(whole) == []
    assert len(steps) == 3 * 6  # nothing was done twice
    assert [line.cells for line in whole.lines] == [line.cells for line in fresh.lines]


def test_only_a_clock_turns_an_interrupt_into_a_table(host: inlay.Host, tmp_path: Path):
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            raise KeyboardInterrupt

    data = cooking.serve(tmp_path / "data", cooking.FILES)
    with pytest.raises(KeyboardInterrupt):
        run(host, cooking.write(tmp_path), data, ONE, minutes=60, callbacks=[stop])


def test_means_over_seeds_of_which_some_are_missing_are_said(host: inlay.Host, tmp_path: Path):
    own, data, store = (
        cooking.write(tmp_path, report="mean"),
        cooking.serve(tmp_path / "data", cooking.FILES),
        tmp_path / "r",
    )
    run(host, own, data, ONE, store=store)
    more = Changes(only=["First"], rows=["tuned", "eight"], seeds=2)
    found = run(host, own, data, more, store=store, minutes=0)
    assert unfinished(found) == ["unfinished: 3 of 6 runs; run it again to continue"]
    assert all(cell.ours is not None and cell.spread is None for line in found.lines for cell in line.cells.values())


def test_files_that_are_none_of_ours_are_refused_and_left_alone(host: inlay.Host, tmp_path: Path):
    own, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    text, foreign = tmp_path / "notes.sqlite", tmp_path / "foreign.sqlite"
    text.write_text("not a database\n" * 100)
    with closing(sqlite3.connect(foreign)) as db:
        db.execute("create table mine (x)")
    for path, said in ((text, "not a database"), (foreign, "it holds something else")):
        before = path.read_bytes()
        with pytest.raises(InlayError, match=f"{path} cannot be used as the file of a sweep: .*{said}"):
            run(host, own, data, ONE, store=path)
        assert path.read_bytes() == before


def test_a_damaged_file_is_said_in_one_line(host: inlay.Host, tmp_path: Path):
    own, data, store = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES), tmp_path / "r.sqlite"
    run(host, own, data, ONE, store=store)
    whole = store.read_bytes()
    store.write_bytes(whole[:4096] + b"\0" * (len(whole) - 4096))
    with pytest.raises(InlayError, match=r"r\.sqlite") as error:
        run(host, own, data, ONE, store=store)
    assert "\n" not in str(error.value)


def test_an_adapter_that_somebody_deleted_is_said(host: inlay.Host, tmp_path: Path):
    path = Path(cooking.write(tmp_path))
    path.write_text(path.read_text().replace('["houlsby:size=8"]', '["adapterbias:l0=1e-4"]\nshows = "kept"'))
    data, store = cooking.serve(tmp_path / "data", cooking.FILES), tmp_path / "r.sqlite"
    changes = Changes(only=["First"], rows=["eight"], seeds=1, max_steps=1, grid={"lr": "1e-3"})
    assert run(host, str(path), data, changes, store=store).lines[0].cells["First"].ours is not None
    for file in (tmp_path / "r.sqlite.files").glob("*.safetensors"):
        file.unlink()
    found = run(host, str(path), data, changes, store=store)
    assert found.lines[0].cells["First"].ours is None
    assert found.notes == ("First adapterbias:l0=1e-4: its adapter was not kept; run again with --restart to score it",)
