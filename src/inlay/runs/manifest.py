"""A manifest: many tasks in one TOML file, trained side by side.

[defaults]                    # settings of every task, as in `inlay.Run`
method = "houlsby:size=64"
epochs = 3

[tasks.sms]                   # the name of the adapter
data = "sms.csv"              # relative to the manifest

[tasks.topic]
data = "topics"
method = "adapterbias"
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from inlay.data.folder import join, parts_of
from inlay.data.formats.sniff import BY_EXTENSION, extension
from inlay.errors import InlayError, RunError
from inlay.runs.run import Run, make_run

_FILES = ("data", "val", "test", "unlabelled")
"""Settings that name a file."""


def read_manifest(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a manifest; one error names everything that is wrong in it."""
    path = Path(path)
    content = read_toml(path)
    unknown = sorted(set(content) - {"defaults", "tasks"})
    if unknown:
        raise RunError(f"{path}: has {unknown[0]!r}; expected [defaults] and [tasks.NAME]")
    defaults, tasks = content.get("defaults", {}), content.get("tasks", {})
    if not isinstance(defaults, dict) or not isinstance(tasks, dict) or not tasks:
        raise RunError(f"{path}: has no tasks; expected tables named [tasks.NAME]")
    runs, problems = [], []
    try:
        make_run({"data": "", **defaults}, f"{path} [defaults]")
    except InlayError as error:  # once, and not again for every task
        problems.append(str(error))
        defaults = {key: value for key, value in defaults.items() if key == "data"}
    for name, settings in tasks.items():
        try:
            runs.append(_run(path, name, defaults, settings))
        except InlayError as error:
            problems.append(str(error))
    if problems:
        raise RunError("; ".join(problems))
    return runs


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path}: is not TOML: {error}") from None


def with_files_beside(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run whose files are named relative to the file that the settings come from."""
    return settings | {key: _beside(path, settings[key]) for key in _FILES if key in settings}


def _beside(path: Path, value: Any) -> Any:
    """A name that is not there and does not look like a file is a hub name."""
    if not isinstance(value, str) or not value:
        return value
    near = join(path.parent / part for part in parts_of(value) or [value])
    return near if os.path.exists(near) or extension(value) in BY_EXTENSION else value


def _run(path: Path, name: str, defaults: dict[str, Any], settings: Any) -> Run:
    where = f"{path} [tasks.{name}]"
    if not isinstance(settings, dict):
        raise RunError(f"{where}: is not a table")
    values = {**defaults, **settings, "name": name}
    return make_run(with_files_beside(path, values), where)
