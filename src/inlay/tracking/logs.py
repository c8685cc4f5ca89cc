"""Logs of a training: callbacks that write its events to a file or to TensorBoard; `trackers.py` has those for servers.

Runs train side by side, so each has a curve or a run of its own there. A log must not end a training: what goes wrong
at the start is an error, what goes wrong later is a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, SupportsFloat

from inlay.errors import RunError, suggest
from inlay.tracking.events import Event

Outcome = Literal["done", "failed", "stopped"]


class Log(Protocol):
    """A callback that can be closed. Called again, it opens again."""

    def __call__(self, event: Event) -> None:
        """Take note of one event."""

    def close(self) -> None:
        """End what is open."""


class JsonLines:
    """One JSON object per event, `{"time": ..., "event": ..., ...}`, appended and handed to the system at once.

    A half line that a crash has left is removed, unless only its line end is missing. A training that is resumed
    repeats the steps since its checkpoint, so these may be in the file twice: the last of each run and step counts.
    Numbers that are not finite are null.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).expanduser()
        self._warned = False
        self._file = self._opened()

    def __call__(self, event: Event) -> None:
        """Append one line."""
        if self._file.closed:
            self._file = self._opened()
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": stamp, **plain(event)}, ensure_ascii=False, allow_nan=False)
        line = (text + "\n").encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape
        try:
            written = self._file.write(line)
            if written != len(line):
                self._file.truncate(self._file.tell() - written)
                raise OSError("the disk is full")
        except OSError as error:
            if not self._warned:
                warnings.warn(f"events are missing from the log {self.path}: {error}", RuntimeWarning, stacklevel=2)
            self._warned = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _opened(self) -> Any:
        """The file, unbuffered, at the start of a line."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file():
                _mend(self.path)
            return self.path.open("ab", buffering=0)
        except OSError as error:
            raise RunError(f"cannot write the log {self.path}: {error.strerror or error}") from None


def _mend(path: Path) -> None:
    """Make a log end with a whole line; a file that is no log is left as it is."""
    start = b'{"time": "'
    with path.open("r+b") as file:
        last = _last_line(file)
        if not last:
            return
        if not last.startswith(start) and not start.startswith(last):
            raise RunError(f"cannot write the log {path}: its last line is not an event, so it may be another file")
        try:
            json.loads(last)
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        except ValueError:
            file.truncate(file.seek(0, os.SEEK_END) - len(last))


def _last_line(file: BinaryIO) -> bytes:
    """The bytes after the last line end."""
    size, length = file.seek(0, os.SEEK_END), 1 << 16
    while True:
        length = min(length, size)
        file.seek(size - length)
        _, end, rest = file.read(length).rpartition(b"\n")
        if end or length == size:
            return rest
        length *= 2


def plain(value: Any) -> Any:
    """The value as JSON types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, SupportsFloat):
        number = float(value)
        return number if math.isfinite(number) else None
    return str(value)


@dataclass
class _Open:
    handle: Any
    step: int = 0


class RunByRun(ABC):
    """What all other logs share: one handle per run, from its first `begin` to its `done` or `failed`.

    A run that is put aside to make room begins twice and keeps its handle. A run whose loss is not a number fails
    before that step is told; the step does not open it again.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], _Open] = {}

    def __call__(self, event: Event) -> None:
        """Pass an event on to the log of its run."""
        if "run" not in event:
            return
        key = event["index"], event["run"]
        if key in self._open:
            self._try(key, lambda: self._follow(key, event))
        elif event["event"] == "begin":
            try:
                self._open[key] = _Open(self._start(event["run"], event.get("config", {})))
            except Exception as error:
                raise RunError(f"{type(self).__name__}: cannot start a log of {event['run']}: {error}") from error

    def close(self) -> None:
        """End the logs of runs that are still open, as stopped."""
        for key in list(self._open):
            self._try(key, lambda key=key: self._finish(key, "stopped", {}, ""))  # type: ignore[misc]

    @abstractmethod
    def _start(self, name: str, config: Mapping[str, Any]) -> Any:
        """A handle for a run."""

    @abstractmethod
    def _log(self, handle: Any, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves."""

    @abstractmethod
    def _end(self, handle: Any, outcome: Outcome, step: int, final: Mapping[str, float], problem: str) -> None:
        """Close a run after its last step."""

    def _follow(self, key: tuple[int, str], event: Event) -> None:
        opened, kind = self._open[key], event["event"]
        if kind in ("step", "eval"):
            opened.step = event["step"]
        if kind == "step":
            self._log(opened.handle, opened.step, {"loss": event["loss"], "lr": event["lr"]})
        elif kind == "eval":
            self._log(opened.handle, opened.step, {f"validation/{name}": v for name, v in event["metrics"].items()})
        elif kind in ("done", "failed"):
            splits = event.get("metrics", {})
            final = {f"final/{split}/{name}": v for split, values in splits.items() for name, v in values.items()}
            self._finish(key, kind, final, event.get("problem", ""))

    def _finish(self, key: tuple[int, str], outcome: Outcome, final: Mapping[str, float], problem: str) -> None:
        opened = self._open.pop(key)
        self._end(opened.handle, outcome, opened.step, final, problem)

    def _try(self, key: tuple[int, str], do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            self._open.pop(key, None)
            message = f"{type(self).__name__}: {key[1]} is no longer logged: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


@dataclass
class _Curves:
    folder: Path
    writer: Any = None


class TensorBoard(RunByRun):
    """Curves in `folder/<run>`: loss, lr, validation/<metric>, and final/<split>/<metric> of what is served.

    Calls `torch.utils.tensorboard.SummaryWriter`. Its `purge_step` is the first step written, so that TensorBoard hides
    steps that a resumed training repeats, or an earlier training under this name.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        super().__init__()
        self.folder = Path(folder).expanduser()
        self._writer = package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to the folder {self.folder}: {error.strerror}") from None

    def _start(self, name: str, config: Mapping[str, Any]) -> _Curves:
        return _Curves(self.folder / name)

    def _log(self, handle: _Curves, step: int, values: Mapping[str, float]) -> None:
        if handle.writer is None:
            handle.writer = self._writer(str(handle.folder), purge_step=step, flush_secs=10)
        for name, value in values.items():
            handle.writer.add_scalar(name, value, step)

    def _end(self, handle: _Curves, outcome: Outcome, step: int, final: Mapping[str, float], problem: str) -> None:
        if final:
            self._log(handle, step, final)
        if handle.writer is not None:
            handle.writer.close()


KINDS = {"jsonl": "FILE", "tensorboard": "FOLDER", "wandb": "PROJECT", "mlflow": "EXPERIMENT"}
"""Kind of log -> where it goes."""


def split_log(spec: str) -> tuple[str, str]:
    """`jsonl:FILE` -> ("jsonl", "FILE")."""
    kind, _, place = (part.strip() for part in spec.partition(":"))
    if kind not in KINDS:
        forms = ", ".join(f"{name}:{place}" for name, place in KINDS.items())
        raise RunError(f"unknown log {kind!r}. {suggest(kind, KINDS)}. A log is one of {forms}")
    if not place:
        raise RunError(f"{spec!r} does not say where to log: write {kind}:{KINDS[kind]}")
    return kind, place


def check_installed(spec: str) -> None:
    """Raise an error if a log's package is missing, without importing it."""
    kind, _ = split_log(spec)
    if kind != "jsonl" and importlib.util.find_spec(kind) is None:
        raise RunError(f"{kind} is not installed: pip install {'mlflow-skinny' if kind == 'mlflow' else kind}")


def make(spec: str) -> Log:
    """A log from the command line: `jsonl:FILE`, `tensorboard:FOLDER`, `wandb:PROJECT` or `mlflow:EXPERIMENT`."""
    from inlay.tracking.trackers import MLflow, WandB  # these build on this module

    kind, place = split_log(spec)
    makers: Mapping[str, Callable[[str], Log]] = {"jsonl": JsonLines, "tensorboard": TensorBoard}
    return {**makers, "wandb": WandB, "mlflow": MLflow}[kind](place)


def package(module: str, install: str) -> Any:
    """An optional package; a folder of its name, which these tools leave behind, is not it."""
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise RunError(f"{module} cannot be imported ({error}): pip install {install}") from None
    if getattr(imported, "__file__", None) is None:
        raise RunError(f"{module} is not installed: pip install {install}")
    return imported
