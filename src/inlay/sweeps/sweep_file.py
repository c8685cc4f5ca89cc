"""A sweep in a TOML file: the same content as on the command line.

data = "tickets.csv"          # relative to the file
name = "tickets"
seeds = 3                     # also: select, ensemble, random, search, trials, pruner

[settings]                    # of all runs, as in `inlay.Run`
epochs = 3

[grid]
lr = [3e-4, 1e-3]             # or a range: "1e-4..1e-2"
method = ["houlsby:size=8", "adapterbias"]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inlay.errors import suggest
from inlay.runs.manifest import read_toml, with_files_beside
from inlay.runs.run import make_run
from inlay.sweeps.api import Plan
from inlay.sweeps.grid import refused

_PLAN = ("random", "search", "trials", "pruner", "seeds", "select", "ensemble", "report")
_KEYS = ("data", "name", *_PLAN, "settings", "grid")


def read_file(path: str | os.PathLike[str]) -> tuple[Plan, dict[str, Any], list[str]]:
    """The plan of a file, the settings of its runs with data and name, and what is wrong with it."""
    path = Path(path)
    content = read_toml(path)
    problems = [f"{path}: unknown key {key!r}. {suggest(key, _KEYS)}" for key in content if key not in _KEYS]
    tables = {}
    for key in ("settings", "grid"):
        tables[key] = content.get(key, {})
        if not isinstance(tables[key], dict):
            problems.append(f"{path}: {key} is not a table")
            tables[key] = {}
    settings: dict[str, Any] = tables["settings"]
    twice = sorted({"data", "name"} & settings.keys() & content.keys())
    problems += [f"{path}: {key} is given twice" for key in twice]
    settings |= {key: content[key] for key in ("data", "name") if key in content}
    if "data" not in settings:
        problems.append(f"{path}: 'data' is missing")
    else:
        problems += [f"{path}: {problem}" for problem in refused(make_run, {"data": settings["data"]})]
    plan = Plan(tables["grid"], **{key: content[key] for key in _PLAN if key in content})
    return plan, with_files_beside(path, settings), problems
