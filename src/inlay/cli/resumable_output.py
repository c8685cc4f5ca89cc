"""Answers on disk, however many: finished parts in a folder beside the output, joined at the end.

    F.parts/state.json       which command this is; once joined, also which file came of it
    F.parts/00000000.csv     the answers to the first rows of the input, and so on

A part, the joined file and the state appear whole or not at all. A command that was killed anywhere, even between
joining and cleaning up, continues with `--resume` and ends with the same bytes as one that was not. Before its first
part is finished there is nothing to continue: the same command just starts over.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from pathlib import Path
from typing import IO, Any

from inlay.cli.output import finite
from inlay.data.by_column import ByColumn
from inlay.errors import RunError
from inlay.untrusted import cell

Answer = Mapping[str, Any]
ROWS: Mapping[str, int] = {"cpu": 256, "cuda": 4096}
"""Rows of the input in one part: what a device answers in seconds, since a kill loses the part in hand."""
SIZE = "rows of a part"
"""The key of that number in a command."""
_STATE = "state.json"


@dataclass(frozen=True)
class _Format:
    """How a part is written, and how parts become one file."""

    write: Callable[[Path, Sequence[Answer], OutputParts], None]
    join: Callable[[Path, Iterator[Path], OutputParts], None]


def check_out(out: Path) -> None:
    """Refuse an output that could not be written, before any work is done."""
    if out.suffix not in _FORMATS:
        raise RunError(f"--out {out}: the name must end with {', '.join(_FORMATS)}")
    if out.is_dir():
        raise RunError(f"--out {out}: this is a folder; expected a file")
    if not out.parent.is_dir():
        raise RunError(f"--out {out}: there is no folder {out.parent}")
    if out.suffix == ".parquet":
        _arrow()


def folder_of(out: Path) -> Path:
    """Where the parts are while the output is not finished."""
    return out.with_name(f"{out.name}.parts")


def begun(out: Path) -> Mapping[str, Any] | None:
    """The command that left parts behind, if one did."""
    folder = folder_of(out)
    if not folder.is_dir() or all(path.name.startswith(".") for path in folder.iterdir()):
        return None  # no command, or one that was killed before its state was written
    command: Mapping[str, Any] = _state(folder)["command"]
    return command


def size_of(before: Mapping[str, Any]) -> int:
    """The rows of a part: those of the command that left parts behind, else those that suit this device."""
    import torch

    size = before.get(SIZE)
    return size if isinstance(size, int) and size > 0 else ROWS["cuda" if torch.cuda.is_available() else "cpu"]


def open_parts(
    out: Path,
    columns: Mapping[str, str],
    command: Mapping[str, Any],
    *,
    resume: bool = False,
    overwrite: bool = False,
    raw: bool = False,
) -> OutputParts:
    """Begin, or continue with `resume`: the command must be the same, also while no part is finished.

    Args:
        columns: of a table, with their types; JSON lines hold whatever the answers do.
        command: all that decides what the output will be; JSON.
        overwrite: replace the output if there is one already.
        raw: leave cells of CSV that a spreadsheet would run as they are.
    """
    folder = folder_of(out)
    before = begun(out)
    parts = OutputParts(out, folder, dict(columns), json.loads(json.dumps(command)), raw)
    # parts of another command, which may be running, must not be taken for those of this one
    nothing_done = before == parts.command and not parts.finished and "joined" not in _state(folder)
    if before is not None and not resume and not nothing_done:
        raise RunError(f"{folder} already exists: pass --resume to continue it, or delete it to start over")
    if before is not None:
        _same(folder, before, parts.command)
    if out.exists() and not overwrite and parts.summary is None:
        raise RunError(f"{out} already exists: pass --overwrite to replace it")
    with _writing(out):
        folder.mkdir(exist_ok=True)
        if before is None:
            parts._keep({"command": parts.command})
    return parts


@dataclass(frozen=True)
class OutputParts:
    """The parts of one output."""

    out: Path
    folder: Path
    columns: Mapping[str, str]
    command: Mapping[str, Any] = field(repr=False)
    raw: bool = False

    @property
    def finished(self) -> int:
        """How many parts there are."""
        return sum(path.stem.isdecimal() for path in self.folder.glob(f"*{self.out.suffix}"))

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary that `join` got, if its file is in place and only cleaning up is left to do."""
        joined = _state(self.folder).get("joined") if (self.folder / _STATE).exists() else None
        if joined is None or not self.out.exists() or joined["file"] != _identity(self.out):
            return None
        summary: dict[str, Any] = joined["summary"]
        return summary

    def has(self, index: int) -> bool:
        """Whether a part is finished."""
        return self._part(index).exists()

    def write(self, index: int, answers: Sequence[Answer]) -> None:
        """Finish a part."""
        form = _FORMATS[self.out.suffix]
        self._place(self._part(index), lambda path: form.write(path, answers, self))

    def join(self, parts: int, summary: Mapping[str, Any]) -> None:
        """Join this many parts into the output and clean up; `summary` is kept until that is done."""
        form = _FORMATS[self.out.suffix]
        whole = self.folder / f"joined{self.out.suffix}"
        self._place(whole, lambda path: form.join(path, (self._part(i) for i in range(parts)), self))
        # renaming keeps a file's identity, so a later command can tell that the output is this one
        self._keep({"command": self.command, "joined": {"file": _identity(whole), "summary": dict(summary)}})
        with _writing(self.out):
            whole.replace(self.out)
        self.remove()

    def remove(self) -> None:
        """Delete the parts, and the state last."""
        with _writing(self.folder):
            for path in self.folder.iterdir():
                if path.name != _STATE:
                    path.unlink()
            (self.folder / _STATE).unlink(missing_ok=True)
            self.folder.rmdir()

    def _part(self, index: int) -> Path:
        return self.folder / f"{index:08}{self.out.suffix}"

    def _keep(self, state: Mapping[str, Any]) -> None:
        self._place(self.folder / _STATE, lambda path: path.write_text(json.dumps(state, indent=2), encoding="utf-8"))

    def _place(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file under another name, make sure that it is on the disk, then give it its name."""
        part = path.with_name(f".{path.name}.{os.getpid()}")
        with _writing(path):
            try:
                write(part)
                with part.open("rb") as file:
                    os.fsync(file.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)


def _state(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state["command"], dict):
            raise TypeError("it names no command")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder} is not a folder of parts ({error}); delete it to start over") from None
    return dict(state)


def _same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    keys = dict.fromkeys([*before, *now])
    differing = [key for key in keys if before.get(key) != now.get(key)]
    if differing:
        changes = "; ".join(f"{key} was {_shown(before.get(key))}, is {_shown(now.get(key))}" for key in differing)
        raise RunError(f"{folder} belongs to another command: {changes}. Run that one again, or delete the folder")


def _shown(value: Any) -> str:
    if value in (None, False):
        return "not given"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None


def _cell(value: Any) -> Any:
    """Lists and objects become JSON text; a table has no place for them."""
    return _json(value) if isinstance(value, list | tuple | Mapping) else value


def _plain(value: Any) -> Any:
    """Values that JSON has no form for, such as dates from parquet, become text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode


def _json(value: Any) -> str:
    try:
        return _encoded(value)
    except ValueError:  # a number is not finite; rare, so it is not looked for in advance
        return _encoded(finite(value))


def _lines(answers: ByColumn) -> Iterator[str]:
    """Each answer as `_json` writes it, in half the time."""
    names = [_json(name).replace("%", "%%") for name in answers.columns]
    form = f"{{{', '.join([f'{name}: %s' for name in names])}}}"
    return map(form.__mod__, zip(*map(_texts, answers.columns.values()), strict=True))


def _texts(column: Sequence[Any]) -> Iterable[str]:
    """The values of a column as JSON."""
    if isinstance(column, ByColumn):
        return _lines(column)
    kinds = set(map(type, column))
    if kinds == {str}:
        return map(encode_basestring, column)
    if kinds == {int} or (kinds == {float} and all(map(math.isfinite, column))):
        return map(repr, column)
    return map(_json, column)


def _write_lines(path: Path, answers: Sequence[Answer], parts: OutputParts) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        lines = _lines(answers) if isinstance(answers, ByColumn) else map(_json, answers)
        file.write("\n".join([*lines, ""]))


def _join_lines(path: Path, files: Iterator[Path], parts: OutputParts, head: bytes = b"") -> None:
    with path.open("wb") as whole:
        whole.write(head)
        for part in files:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)


def _csv(rows: Iterable[Sequence[Any]], raw: bool, file: IO[str]) -> None:
    """Rows end with CR LF: else a CR in a text would not be quoted before Python 3.13."""
    cells = ([_cell(value) for value in row] for row in rows)
    csv.writer(file).writerows(row if raw else [cell(value) for value in row] for row in cells)


def _write_csv(path: Path, answers: Sequence[Answer], parts: OutputParts) -> None:
    """Rows alone: joining adds the head."""
    with path.open("w", encoding="utf-8", newline="") as file:
        _csv(([answer.get(column) for column in parts.columns] for answer in answers), parts.raw, file)


def _join_csv(path: Path, files: Iterator[Path], parts: OutputParts) -> None:
    head = io.StringIO(newline="")
    _csv([list(parts.columns)], parts.raw, head)
    _join_lines(path, files, parts, head.getvalue().encode())


def _arrow() -> tuple[Any, Any]:
    """pyarrow, imported by name since it comes without types."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise RunError("writing parquet needs pyarrow; pip install 'inlay[parquet]', or write .csv or .jsonl") from None


def _schema(columns: Mapping[str, str]) -> Any:
    arrow, _ = _arrow()
    return arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in columns.items()])


def _write_parquet(path: Path, answers: Sequence[Answer], parts: OutputParts) -> None:
    arrow, parquet = _arrow()
    rows = [{name: _typed(answer.get(name), kind) for name, kind in parts.columns.items()} for answer in answers]
    parquet.write_table(arrow.Table.from_pylist(rows, _schema(parts.columns)), path)


def _typed(value: Any, kind: str) -> Any:
    """In a column of texts, other values become text."""
    if kind != "string" or value is None or isinstance(value, str):
        return value
    return _json(value) if isinstance(value, list | tuple | Mapping | bool) else str(value)


def _join_parquet(path: Path, files: Iterator[Path], parts: OutputParts) -> None:
    """A row group per part, so that no more than one is in memory."""
    _, parquet = _arrow()
    with parquet.ParquetWriter(path, _schema(parts.columns)) as whole:
        for part in files:
            with parquet.ParquetFile(part) as file:  # read_table would take a=b in the path for a column
                whole.write_table(file.read())


_FORMATS: Mapping[str, _Format] = {
    ".jsonl": _Format(_write_lines, _join_lines),
    ".csv": _Format(_write_csv, _join_csv),
    ".parquet": _Format(_write_parquet, _join_parquet),
}
