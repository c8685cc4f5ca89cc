"""The results of a sweep: one SQLite file, one row per run.

A row is `done`, `pruned` or `failed` only when the loop's checkpoint says so too, so a kill at any moment leaves runs
that are finished for good and runs that go on from where the checkpoint has them.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inlay.errors import AdapterError, DiskError, RunError
from inlay.library.adapter import Adapter
from inlay.library.defaults import restated
from inlay.library.lock import Lock
from inlay.library.storage import PART
from inlay.sweeps.trial import Trial
from inlay.training.checkpoint import Checkpoint

_FORMATS = (1, 2, 3)
"""2 has `replicates`, 3 also `loss`; an older file becomes one of 3 when it is opened to write."""
APPLICATION = 0x494E4C59
"""INLY, in the header of the SQLite file: marks it as ours."""
_ID = re.compile(r"[0-9a-f]{20}")
_TABLES = """
create table if not exists about (key text primary key, value text not null);
create table if not exists runs (
    id text primary key,
    position integer not null,
    label text not null,
    setting text not null,
    seed integer not null,
    config text not null,
    state text not null default 'waiting',
    metric text not null,
    value real,
    metrics text not null default '{}',
    history text not null default '[]',
    parameters text not null default '{}',
    seconds real not null default 0,
    tokens integer not null default 0,
    error text not null default ''
);
create table if not exists asked (
    study text not null,
    number integer not null,
    seed integer not null,
    id text not null,
    label text not null,
    setting text not null,
    primary key (study, number, seed)
);
"""
_LATER = {"replicates": "text not null default '[]'", "loss": "real"}
"""Columns of `runs` that older files lack."""
_JSON = ("setting", "config", "metrics", "history", "parameters", "replicates")
ENDED = ("done", "pruned", "failed")


@dataclass(frozen=True)
class Row:
    """One run as it is stored."""

    id: str
    position: int
    label: str
    setting: dict[str, Any]
    """What varies in the sweep."""
    seed: int
    config: dict[str, Any]
    """All settings that are not defaults: `inlay.Run(**config)` runs it again."""
    state: str
    """waiting, running, done, pruned or failed."""
    metric: str
    value: float | None
    """The deciding metric on validation."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    parameters: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    tokens: int = 0
    error: str = ""
    replicates: list[float] = field(default_factory=list, repr=False)
    """The value without the first, second ... part of the validation rows; empty if not known."""
    loss: float | None = None
    """Of the validation rows, with calibrated answers; None if not known."""
    number: int | None = None
    """The trial of a search that it belongs to."""


class Store:
    """A SQLite file, and beside it a folder with a checkpoint and the adapters that may be the best.

    Without a path, everything is kept in memory.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = None if path is None else Path(path)
        self._adapters: dict[str, Adapter] = {}
        self._lock: Lock | None = None
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path or ":memory:", isolation_level=None, timeout=30)
            _refuse_foreign(self._db)  # before anything is written
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"{self.path} cannot be used as the file of a sweep: {error}") from None
        self._take_lock()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Make the tables, or check and update those that are there."""
        with self._one_line_errors():
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            with self._transaction():
                if self._db.execute("pragma application_id").fetchone()[0] != APPLICATION:
                    self._db.execute(f"pragma application_id={APPLICATION}")
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
        if self.about("format", _FORMATS[0]) not in _FORMATS:
            raise RunError(f"{self.path} was written by another version of Inlay")
        with self._transaction():
            there = [column[1] for column in self._db.execute("pragma table_info(runs)")]
            for name, kind in _LATER.items():
                if name not in there:
                    self._db.execute(f"alter table runs add column {name} {kind}")
            self.note("format", _FORMATS[-1])

    @property
    def folder(self) -> Path | None:
        """Where checkpoint and adapters are."""
        return None if self.path is None else self.path.with_name(f"{self.path.name}.files")

    def close(self) -> None:
        """Let other processes use it."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:  # in memory: the result of a sweep still needs it
            self.close()

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """An error of the database or the disk becomes one line."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DiskError(f"cannot use {self.path}: {error}; what was written before is kept") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._one_line_errors():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):  # on a full disk it is rolled back already
                    self._db.execute("rollback")
                raise

    def about(self, key: str, default: Any = None) -> Any:
        """A note on the whole sweep."""
        with self._one_line_errors():
            row = self._db.execute("select value from about where key = ?", (key,)).fetchone()
        return default if row is None else json.loads(row[0])

    def note(self, key: str, value: Any) -> None:
        """Write a note on the whole sweep."""
        with self._one_line_errors():
            self._db.execute("insert or replace into about values (?, ?)", (key, json.dumps(value)))

    def add(self, trials: Sequence[Trial], study: str | None = None) -> None:
        """Add rows for trials; existing ones stay as they are.

        Args:
            study: the search that they belong to.
        """
        with self._transaction():
            at = self._db.execute("select coalesce(max(position) + 1, 0) from runs").fetchone()[0]
            for i, trial in enumerate(trials):
                setting = json.dumps(trial.setting)
                config, metric = json.dumps(trial.data.run.written()), trial.data.metric
                values = (trial.id, at + i, trial.label, setting, trial.seed, config, metric)
                names = "id, position, label, setting, seed, config, metric"
                self._db.execute(f"insert or ignore into runs ({names}) values (?, ?, ?, ?, ?, ?, ?)", values)
                if study is not None:
                    question = (study, trial.number, trial.seed, trial.id, trial.label, setting)
                    self._db.execute("insert or replace into asked values (?, ?, ?, ?, ?, ?)", question)

    def rows(self, ids: Iterable[str]) -> list[Row]:
        """Rows that are there, in the order of their ids."""
        row_of_id = {row.id: row for row in self._select("select * from runs")}
        return [row_of_id[id] for id in ids if id in row_of_id]

    def rows_of(self, trials: Iterable[Trial]) -> list[Row]:
        """The rows of trials, in their order, with their labels and settings: another sweep may have added them."""
        trial_of_id = {trial.id: trial for trial in trials}
        pairs = ((row, trial_of_id[row.id]) for row in self.rows(trial_of_id))
        return [replace(row, label=t.label, setting=t.setting, position=i) for i, (row, t) in enumerate(pairs)]

    def study(self, name: str) -> list[Row]:
        """The rows of a search, in its order; two searches may share a run."""
        text = (
            "select runs.*, asked.number, asked.label as own_label, asked.setting as own_setting from asked "
            "join runs using (id) where study = ? order by asked.number, asked.seed"
        )
        return self._select(text, name)

    def _select(self, text: str, *values: Any) -> list[Row]:
        with self._one_line_errors():
            return _rows(self._db, text, *values)

    def set(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change fields of rows, all at once: id -> field -> value."""
        with self._transaction():
            for id, fields in changes.items():
                values = [json.dumps(value) if key in _JSON else value for key, value in fields.items()]
                names = ", ".join(f"{key} = ?" for key in fields)
                self._db.execute(f"update runs set {names} where id = ?", (*values, id))

    def keep(self, id: str, adapter: Adapter) -> None:
        """Keep a run's adapter."""
        if self.folder is None:
            self._adapters[id] = adapter
            return
        with self._one_line_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            adapter.save(self.folder / f"{id}.safetensors")
        except AdapterError as error:
            raise DiskError(str(error)) from None

    def adapter(self, id: str) -> Adapter | None:
        """A run's adapter, if it was kept."""
        if self.folder is None:
            return self._adapters.get(id)
        try:
            return Adapter.read(self.folder / f"{id}.safetensors")
        except AdapterError:
            return None

    def forget(self, but: Iterable[str]) -> None:
        """Delete all adapters but these."""
        wanted = set(but)
        self._adapters = {id: adapter for id, adapter in self._adapters.items() if id in wanted}
        if self.folder is not None:
            with self._one_line_errors():
                for file in self.folder.glob("*.safetensors"):
                    if file.stem not in wanted and _ID.fullmatch(file.stem):
                        file.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what killed processes have left half written."""
        if self.folder is None:
            return
        with self._one_line_errors():
            for folder in (self.folder / "loop", self.folder):
                for file in folder.glob(f"{PART}*"):
                    file.unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()  # if nothing is in it

    def _take_lock(self) -> None:
        """Two processes on one sweep would do everything twice, and damage each other's checkpoint."""
        if self.path is None:
            return
        refusal = f"another process is using {self.path}; wait for it, or use another name"
        try:
            self._lock = Lock(self.path.with_name(f"{self.path.name}.lock"), refusal)
        except RunError:
            self.close()
            raise


def _refuse_foreign(db: sqlite3.Connection) -> None:
    """An error if a database is not ours. Ours have our number, or at least our tables; one without tables is new."""
    number = db.execute("pragma application_id").fetchone()[0]
    tables = _tables(db)
    if number == APPLICATION or not (tables or number):
        return
    with closing(sqlite3.connect(":memory:")) as like:
        like.executescript(_TABLES)
        if number == 0 and tables == _tables(like):
            return
    raise sqlite3.DatabaseError("it holds something else")


def _tables(db: sqlite3.Connection) -> dict[str, list[Any]]:
    """Every table and its columns."""
    names = [name for (name,) in db.execute("select name from sqlite_master where type in ('table', 'view')")]
    return {name: db.execute("select * from pragma_table_info(?)", (name,)).fetchall() for name in names}


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """All runs of a file, as they were added. Nothing is written or locked, so a sweep may be using it."""
    path = Path(path)
    if not path.is_file():
        raise RunError(f"there is no sweep in {path}")
    address = path.resolve().as_uri()
    for option in ("mode=ro", "immutable=1"):  # the second where not even the files of a log may be written
        try:
            with closing(sqlite3.connect(f"{address}?{option}", uri=True, timeout=30)) as db:
                _refuse_foreign(db)
                return _rows(db, "select * from runs order by position")
        except (sqlite3.Error, ValueError, TypeError) as error:
            problem = error
    raise RunError(f"{path} is not the file of a sweep: {problem}")


def _rows(db: sqlite3.Connection, text: str, *values: Any) -> list[Row]:
    cursor = db.execute(text, values)
    names = [column[0] for column in cursor.description]
    rows = []
    for fields in (dict(zip(names, values, strict=True)) for values in cursor):
        fields |= {key: fields.pop(f"own_{key}") for key in ("label", "setting") if f"own_{key}" in fields}
        row = {key: json.loads(value) if key in _JSON else value for key, value in fields.items()}
        rows.append(Row(**row | {"config": restated(row["config"])}))
    return rows


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a sweep: its file, its checkpoint and its adapters. Other files in its folder stay."""
    path = Path(path)
    if not path.exists():
        return
    with Store(path) as opened, opened._one_line_errors():  # refuses a file that is not ours, or that is in use
        assert opened.folder is not None
        assert opened._lock is not None
        Checkpoint(opened.folder / "loop").remove()
        opened.forget(but=())
        opened.tidy()
        opened._db.close()
        for suffix in ("", "-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
        opened._lock.release(remove=True)
