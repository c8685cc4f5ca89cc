"""A sweep's file: known as ours before anything is written, one line when it cannot be written, ids that last."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from training import work

import inlay
from inlay.errors import DiskError, RunError
from inlay.library import defaults
from inlay.runs import run as runs
from inlay.runs.prepare import prepare
from inlay.sweeps import store as stores
from inlay.sweeps.store import APPLICATION, Store, read_rows, remove
from inlay.sweeps.trial import identity

GOLDEN = Path(__file__).parents[1] / "golden" / "format1"
FOREIGN = {
    "another table runs": "create table runs(run_uuid text primary key); insert into runs values('precious');",
    "our tables and another": stores._TABLES + "create table mine(a); insert into mine values('precious');",
    "a column more": stores._TABLES.replace("error text", "mine text, error text"),
    "a view": "create view runs as select 'precious' as id;",
    "another number": "pragma application_id=7;",
    "our tables under another number": stores._TABLES + "pragma application_id=7;",
}


def database(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)
    return path


def number_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        found: int = db.execute("pragma application_id").fetchone()[0]
    return found


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_database_is_not_touched(tmp_path, what):
    path = database(tmp_path / "theirs.db", FOREIGN[what])
    beside = tmp_path / "theirs.db.files"
    beside.mkdir()
    (beside / "mine.txt").write_text("precious")
    before = path.read_bytes()
    for use in (Store, remove, read_rows):
        with pytest.raises(RunError, match="something else"):
            use(path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["theirs.db", "theirs.db.files"]
    assert (beside / "mine.txt").read_text() == "precious"


def test_what_is_no_database_is_not_touched(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("precious " * 200)
    for use in (Store, remove, read_rows):
        with pytest.raises(RunError, match="not a database"):
            use(path)
    assert path.read_text() == "precious " * 200


def test_a_new_file_has_our_number(tmp_path):
    Store(tmp_path / "new.db").close()
    assert number_of(tmp_path / "new.db") == APPLICATION == 0x494E4C59
    (tmp_path / "empty.db").touch()
    Store(tmp_path / "empty.db").close()
    assert number_of(tmp_path / "empty.db") == APPLICATION


def test_a_file_from_before_there_was_a_number_is_known_by_its_tables(tmp_path):
    path = Path(shutil.copy(GOLDEN / "sweep.db", tmp_path))
    assert number_of(path) == 0
    assert len(read_rows(path)) == 2
    assert number_of(path) == 0, "reading writes nothing"
    Store(path).close()
    assert number_of(path) == APPLICATION
    assert len(read_rows(path)) == 2


def test_restart_removes_what_is_ours_alone(tmp_path):
    path = Path(shutil.copy(GOLDEN / "sweep.db", tmp_path))
    folder = Path(shutil.copytree(GOLDEN / "sweep.db.files", tmp_path / "sweep.db.files"))
    assert list(folder.glob("*.safetensors"))
    shutil.copytree(GOLDEN / "checkpoint", folder / "loop")
    (folder / "mine.safetensors").write_text("precious")
    remove(path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "sweep.db.files",
        "sweep.db.files/mine.safetensors",
    ]
    (folder / "mine.safetensors").unlink()
    remove(path)
    assert list(folder.iterdir()) == []


def test_restart_leaves_a_sweep_alone_that_somebody_works_on(tmp_path):
    with Store(tmp_path / "s.db"), pytest.raises(RunError, match="another process is using"):
        remove(tmp_path / "s.db")
    assert (tmp_path / "s.db").exists()
    remove(tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(tmp_path):
    store = Store(tmp_path / "s.db")
    store._db.execute("insert into runs (id, position, label, setting, seed, config, metric) values (1,1,1,1,1,1,1)")
    store._db.execute(f"pragma max_page_count={store._db.execute('pragma page_count').fetchone()[0]}")
    large = "x" * 100_000
    for write in (lambda: store.note("a", large), lambda: store.set({"1": {"error": large}})):
        with pytest.raises(DiskError, match=r"s\.db: database or disk is full; what was written before is kept"):
            write()
        store.note("b", 1)  # nothing is left open
    assert store.about("b") == 1
    store.close()


@pytest.mark.full
def test_a_sweep_on_a_full_disk_stops_and_goes_on_later(tmp_path, monkeypatch):
    """No run is blamed for it: the same sweep ends well when there is room again."""
    host = work.host()
    run = work.run(epochs=1, method="bitfit")
    grid = {"lr": [1e-3, 1e-2]}
    told: list[str] = []
    real = Store.set

    def full(self: Store, changes: Any) -> None:
        if any(fields.get("state") == "done" for fields in changes.values()):
            with self._one_line_errors():
                raise sqlite3.OperationalError("database or disk is full")
        real(self, changes)

    given = {key: getattr(run, key) for key in run.model_fields_set if key != "lr"}
    plain = inlay.Run(**given)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "set", full)
        with pytest.raises(DiskError, match="disk is full"):
            inlay.sweep(host, plain, grid, store=tmp_path / "s.db")
    assert {row.state for row in read_rows(tmp_path / "s.db")} == {"running"}
    found = inlay.sweep(
        host, plain, grid, store=tmp_path / "s.db", callbacks=[lambda event: told.append(event["event"])]
    )
    assert [row.state for row in found.rows] == ["done", "done"]
    assert "step" not in told, "what the checkpoint has is not trained again"


def test_adapters_that_cannot_be_written_stop_the_training(tmp_path, monkeypatch):
    """A full disk when a run ends: it is not the run that has failed."""
    host, real = work.host(), inlay.Adapter.save

    def full(self: inlay.Adapter, path: Any) -> Path:
        raise inlay.errors.AdapterError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(inlay.Adapter, "save", full)
    runs = [work.run(epochs=1, method="bitfit", name=name) for name in ("a", "b")]
    with pytest.raises(DiskError, match="No space left"):
        inlay.train(host, runs, checkpoint=tmp_path / "c", save_every=0.0)
    monkeypatch.setattr(inlay.Adapter, "save", real)
    results = inlay.train(host, runs, checkpoint=tmp_path / "c", resume=True)
    assert [result.ok for result in results] == [True, True]


# --- identities -------------------------------------------------------------------------------------------------


class Later(runs.Run):
    """A run of some later Inlay."""

    new: int | None = Field(None, description="a setting that there was not")


def ids(host: inlay.Host, cls: type[runs.Run], **settings: Any) -> str:
    how = {
        "method": "adapterbias",
        "epochs": 2,
        "batch_size": 8,
        "val_size": 8,
        "max_steps": 6,
        "seed": 0,
        "choose_by": "score",
    }
    run = cls(data=str(GOLDEN / "rows.csv"), name="tone", **{**how, **settings})
    return identity(prepare(run, host), host)


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return inlay.Host(str(GOLDEN / "base"), device="cpu")


def test_the_runs_of_an_old_file_are_known(host):
    stored = {row.id for row in read_rows(GOLDEN / "sweep.db")}
    assert {ids(host, runs.Run, lr=lr) for lr in (1e-3, 1e-2)} == stored


def test_they_are_known_when_there_is_another_setting(host, monkeypatch):
    stored = {row.id for row in read_rows(GOLDEN / "sweep.db")}
    monkeypatch.setattr("inlay.sweeps.trial.Run", Later)
    assert {ids(host, Later, lr=lr) for lr in (1e-3, 1e-2)} == stored
    assert ids(host, Later, lr=1e-3, new=3) not in stored
    monkeypatch.setattr(defaults, "LATER", {**defaults.LATER, "new": 3})  # that is what was done before
    assert ids(host, Later, lr=1e-3, new=3) in stored
    assert ids(host, Later, lr=1e-3) not in stored


def test_another_default_is_another_run(host, monkeypatch):
    from library.test_defaults import change

    stored = {row.id for row in read_rows(GOLDEN / "sweep.db")}
    change(monkeypatch, inlay.registry.methods.find("adapterbias"), share="v")
    assert ids(host, runs.Run, lr=1e-3) not in stored
    assert ids(host, runs.Run, lr=1e-3, method="adapterbias:share=none") in stored
    monkeypatch.setattr(defaults, "CHANGED_OPTIONS", {"adapterbias": frozenset({"share"})})
    assert read_rows(GOLDEN / "sweep.db")[0].config["method"] == "adapterbias:share=none"


def test_the_control(host):
    assert ids(host, runs.Run, lr=1e-3) != ids(host, runs.Run, lr=1e-3, seed=1)


def test_a_file_of_the_first_format_becomes_one_of_today_and_a_newer_one_is_refused(tmp_path):
    path = tmp_path / "old.sqlite"
    path.write_bytes((GOLDEN / "sweep.db").read_bytes())
    before = read_rows(path)
    with Store(path) as store:
        assert store.about("format") == 3
        store.set({before[0].id: {"replicates": [0.5, 0.25], "loss": 0.5}})
    after = read_rows(path)
    assert [row.replicates for row in after] == [[0.5, 0.25], *([] for _ in before[1:])]
    assert [row.loss for row in after] == [0.5, *(None for _ in before[1:])]
    assert [(row.id, row.value, row.config) for row in after] == [(row.id, row.value, row.config) for row in before]
    with Store(path) as store:
        store.note("format", 4)
    with pytest.raises(RunError, match="another version of Inlay"):
        Store(path)
