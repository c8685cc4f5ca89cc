"""Parts of an output: a kill at any moment, and what may be resumed."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from inlay.cli.resumable_output import SIZE, OutputParts, begun, check_out, folder_of, open_parts, size_of
from inlay.data.by_column import ByColumn
from inlay.errors import RunError

COLUMNS = dict.fromkeys(("task", "text", "label", "score", "scores", "start"), "string")
COLUMNS |= {"score": "float64", "start": "int64"}
SUFFIXES = (".jsonl", ".csv", ".parquet")
COMMAND = {"adapters": ["sms 1 abc"], "top_k": 2}
SUMMARY = {"rows": 6}


def answers(part: int) -> list[dict[str, Any]]:
    text = f'{part}: "quoted", two\nlines\r and ünïcode'
    first = {"task": "sms", "text": text, "label": "ham", "score": 0.1 + 0.2, "scores": {"häm": 0.5}}
    return [first, {"task": "ask", "text": text, "label": None, "score": 1e-9, "start": part}][: 2 - part % 2]


class Killed(BaseException):
    """Not an Exception: nothing may handle it, as nothing handles SIGKILL."""


class Death:
    """The process dies at its n-th touch of the disk, just before or just after it; from then on it touches nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, after: bool):
        self.left, self.after, self.dead = at, after, False
        for name in ("replace", "unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(Path, name, self._mortal(getattr(Path, name)))

    def _mortal(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.dead or (self.left < 0 and not self.after):
                self.dead = True
                raise Killed
            done = real(*arguments, **more)
            if self.left < 0:
                self.dead = True
                raise Killed
            return done

        return touch


def run(out: Path, resume: bool = False, **more: Any) -> list[int]:
    """Write three parts and join them; the parts that had to be written."""
    store = open_parts(out, COLUMNS, COMMAND, resume=resume, **more)
    if store.summary is not None:
        assert store.summary == SUMMARY
        store.remove()
        return []
    missing = [part for part in range(3) if not store.has(part)]
    for part in missing:
        store.write(part, answers(part))
    store.join(3, SUMMARY)
    return missing


def killed(out: Path, at: int, after: bool) -> bool:
    """Run until a kill; whether there was one before the end."""
    with pytest.MonkeyPatch.context() as patch:
        death = Death(patch, at, after)
        with contextlib.suppress(Killed):
            run(out)
        return death.dead


@pytest.fixture(params=SUFFIXES)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "lang=en"  # a path that some readers of parquet take for data
    folder.mkdir()
    return folder / f"answers{request.param}"


def test_the_formats_hold_the_same(tmp_path: Path):
    rows = [answer for part in range(3) for answer in answers(part)]
    for suffix in SUFFIXES:
        assert run(tmp_path / f"a{suffix}") == [0, 1, 2]
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == list(COLUMNS) == list(cells[0])
    assert {name: str(table.schema.field(name).type) for name in ("text", "score", "start", "scores")} == {
        "text": "string",
        "score": "double",
        "start": "int64",
        "scores": "string",
    }
    for row, cell, stored in zip(rows, cells, table.to_pylist(), strict=True):
        scores = None if "scores" not in row else json.dumps(row["scores"], ensure_ascii=False)
        assert stored == {**dict.fromkeys(COLUMNS), **row, "scores": scores}
        assert {key: None if value == "" else value for key, value in cell.items()} == {
            key: value if value is None or isinstance(value, str) else repr(value) for key, value in stored.items()
        }


def test_nothing_is_left_but_the_output(out: Path):
    run(out)
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert begun(out) is None


@pytest.mark.thin(2)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_moment_changes_no_byte(out: Path, after: bool):
    run(out)
    whole = out.read_bytes()
    out.unlink()
    kills, repeated = 0, []
    while killed(out, kills, after):
        kills += 1
        if out.exists():  # then it is whole
            assert out.read_bytes() == whole
        if out.exists() and not list(folder_of(out).parent.glob("*.parts/*")):
            with pytest.raises(RunError, match="already exists: pass --overwrite"):
                run(out, resume=True)  # all was done, but for an empty folder
        else:
            repeated.append(run(out, resume=True))
        assert out.read_bytes() == whole
        out.unlink()
        if folder_of(out).exists():
            folder_of(out).rmdir()
    assert kills > 12
    assert [0, 1, 2] in repeated  # killed at the beginning
    assert [2] in repeated  # between parts
    assert repeated.count([]) >= 2  # while joining, and while cleaning up


def test_only_the_missing_parts_are_written(out: Path):
    store = open_parts(out, COLUMNS, COMMAND)
    store.write(0, answers(0))
    store.write(1, answers(1))
    assert store.finished == 2
    assert run(out, resume=True) == [2]


@pytest.mark.parametrize(("cuda", "rows"), [(False, 256), (True, 4096)])
def test_a_part_is_as_large_as_suits_the_device(cuda: bool, rows: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    assert size_of({}) == size_of({SIZE: "many"}) == rows
    assert size_of({SIZE: 1000}) == 1000  # as it began


def test_without_a_finished_part_the_same_command_starts_over(out: Path):
    open_parts(out, COLUMNS, COMMAND)
    (folder_of(out) / f".00000000{out.suffix}.7").write_text("half a p")
    with pytest.raises(RunError, match="already exists"):
        open_parts(out, COLUMNS, {**COMMAND, "top_k": 3})  # that one may still be running
    assert run(out) == [0, 1, 2]
    assert not folder_of(out).exists()


def test_an_unfinished_output_needs_resume(out: Path):
    open_parts(out, COLUMNS, COMMAND).write(0, answers(0))
    with pytest.raises(RunError, match=r"\.parts already exists: pass --resume .* or delete it"):
        open_parts(out, COLUMNS, COMMAND)
    with pytest.raises(RunError, match="--resume"):
        open_parts(out, COLUMNS, COMMAND, overwrite=True)
    assert begun(out) == COMMAND


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top_k": 3}, "top_k was 2, is 3"),
        ({"top_k": None}, "top_k was 2, is not given"),
        ({"raw": True}, "raw was not given, is True"),
        ({"adapters": ["sms 2 def"]}, "adapters was sms 1 abc, is sms 2 def"),
    ],
)
def test_another_command_is_not_resumed(tmp_path: Path, change: dict[str, Any], said: str):
    out = tmp_path / "a.csv"
    open_parts(out, COLUMNS, COMMAND).write(0, answers(0))
    with pytest.raises(RunError, match=said):
        open_parts(out, COLUMNS, {**COMMAND, **change}, resume=True)
    assert open_parts(out, COLUMNS, dict(COMMAND), resume=True).finished == 1


def test_an_output_is_replaced_only_when_asked(out: Path):
    out.write_text("precious")
    with pytest.raises(RunError, match="already exists: pass --overwrite"):
        open_parts(out, COLUMNS, COMMAND)
    assert not folder_of(out).exists()
    run(out, overwrite=True)
    assert out.read_bytes() != b"precious"


def test_an_output_of_someone_else_is_not_taken_for_the_joined_one(out: Path, monkeypatch: pytest.MonkeyPatch):
    def replace(self: Path, target: Path) -> Any:
        if target == out:
            raise Killed
        return real(self, target)

    real = Path.replace
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Killed):
        run(out)  # it says that it is joined, but the file is not in place
    monkeypatch.undo()
    out.write_text("precious")
    with pytest.raises(RunError, match="--overwrite"):
        run(out, resume=True)
    assert out.read_text() == "precious"
    out.unlink()
    assert run(out, resume=True) == []


@pytest.mark.parametrize("state", [None, "{", "[]", '{"command": 3}', "{}"])
def test_a_foreign_folder_is_refused(tmp_path: Path, state: str | None):
    out = tmp_path / "a.csv"
    folder_of(out).mkdir()
    (folder_of(out) / ("notes.txt" if state is None else "state.json")).write_text(state or "mine")
    for resume in (False, True):
        with pytest.raises(RunError, match="not a folder of parts"):
            open_parts(out, COLUMNS, COMMAND, resume=resume)


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.txt", "must end with .jsonl, .csv, .parquet"), ("folder.csv", "this is a folder"), ("no/a.csv", "no folder")],
)
def test_what_cannot_be_written_is_known_at_once(tmp_path: Path, name: str, said: str):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(RunError, match=said):
        check_out(tmp_path / name)


def test_a_full_disk_is_one_clear_error(out: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_parts(out, COLUMNS, COMMAND)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match=r"cannot write .*00000000.*: No space left on device"):
        store.write(0, answers(0))
    monkeypatch.undo()
    assert store.finished == 0
    assert [path.name for path in store.folder.iterdir()] == ["state.json"]


def test_an_empty_output_has_columns(tmp_path: Path):
    for suffix in SUFFIXES:
        out = tmp_path / f"a{suffix}"
        store: OutputParts = open_parts(out, COLUMNS, COMMAND)
        store.write(0, [])
        store.join(1, SUMMARY)
    assert (tmp_path / "a.jsonl").read_bytes() == b""
    assert (tmp_path / "a.csv").read_text() == ",".join(COLUMNS) + "\n"
    assert pq.read_table(tmp_path / "a.parquet").column_names == list(COLUMNS)


def test_answers_by_column_are_written_as_one_by_one(tmp_path: Path):
    texts = ['a "b" \\ c', "\x00\x1f\x7f\u2028", "ünï\U0001f600", "", "100 % %s"]
    columns: dict[str, Any] = {
        "text": texts,
        '50 % "off" %s': [None, "x", None, "y", "z"],
        "whole": [0, -1, 10**30, 7, 2**63],
        "flag": [True, False, True, True, False],
        "score": [0.1, 1e-9, 1e22, -0.0, 0.30000001192092896],
        "not finite": [0.5, float("nan"), float("inf"), float("-inf"), 1.0],
        "mixed": [1, 1.0, "1", None, [1, {"a": float("nan")}]],
        "day": [datetime.date(2024, 1, day) for day in range(1, 6)],
        "scores": ByColumn({"a%d": [0.1 + 0.2, 0.5, 1.0, 0.0, 1e-5], "ü": [math.nan] * 5}),
        "none": [None] * 5,
    }
    kept = {**dict.fromkeys(columns, "string"), "score": "float64"}
    for suffix in SUFFIXES:
        found = []
        for number, some in enumerate((ByColumn(columns), list(ByColumn(columns)))):
            store = open_parts(tmp_path / f"{number}{suffix}", kept, COMMAND)
            store.write(0, some)
            store.join(1, SUMMARY)
            found.append(store.out.read_bytes())
        assert found[0] == found[1]
        assert b"100 % %s" in found[0]
