"""Recipes by name, and from TOML: one error names everything that is wrong in a file.

Scores are written as the paper prints them, a line for every row and the columns in the paper's order, so that they are
easily compared with it.
"""

from __future__ import annotations

import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inlay.errors import RunError, suggest
from inlay.recipes.recipe import Recipe

_ENDING = ".toml"
MISSING = "-"
"""In the place of a score that the paper does not print."""


def names() -> list[str]:
    """All recipes that come with Inlay."""
    files = resources.files("inlay.recipes").iterdir()
    return sorted(file.name.removesuffix(_ENDING) for file in files if file.name.endswith(_ENDING))


def find(name: str | os.PathLike[str]) -> Recipe:
    """A recipe by its name, or a file of one's own by its path."""
    text = os.fspath(name)
    if text.endswith(_ENDING):
        try:
            return read(Path(text).read_text(encoding="utf-8"), Path(text).stem, text)
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{text}: cannot be read: {error}") from None
    if text not in names():
        raise RunError(f"unknown recipe {text!r}. {suggest(text, names())}")
    file = resources.files("inlay.recipes") / f"{text}{_ENDING}"
    return read(file.read_text(encoding="utf-8"), text, file.name)


def read(text: str, name: str, where: str) -> Recipe:
    """A recipe from TOML; `where` is what an error calls it."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{where}: is not TOML: {error}") from None
    try:
        return Recipe.model_validate({**_arranged(content, where), "name": name})
    except ValidationError as error:
        raise RunError(f"{where}: " + "; ".join(_problem(one) for one in error.errors())) from None


def _arranged(content: dict[str, Any], where: str) -> dict[str, Any]:
    """The tables of the file as the recipe has them: datasets in the paper's order, rows with their scores."""
    tables = {key: content.get(key) for key in ("datasets", "rows", "scores")}
    tables["spreads"] = content.get("spreads", {})
    for key, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(one, dict | list) for one in table.values()):
            raise RunError(f"{where}: expected a table [{key}]")
    datasets, rows, scores, spreads = (dict(table or {}) for table in tables.values())
    columns = [column for name, one in datasets.items() for column in one.get("languages") or [name]]
    order = scores.pop("order", columns)
    problems = [f"{name} is in order, but not in [datasets]" for name in order if name not in columns]
    problems += [f"{name} is in [datasets], but not in order" for name in columns if name not in order]
    problems += [f"[rows.{name}] has no scores" for name in rows if name not in scores]
    for what, table in (("scores", scores), ("spreads", spreads)):
        for name, line in table.items():
            if name not in rows:
                problems.append(f"{what} of {name} have no [rows.{name}]")
            elif len(line) not in (0, len(order)):  # 0: the paper prints none of them
                problems.append(f"{name} has {len(line)} {what} for {len(order)} columns")
    if problems:
        raise RunError(f"{where}: {'; '.join(problems)}")
    by_column = {name: _by_column(order, line) for name, line in scores.items()}
    beside = {name: _by_column(order, line) for name, line in spreads.items()}
    return {
        **{key: value for key, value in content.items() if key not in tables},
        "datasets": [
            {**one, "name": name} for name, one in sorted(datasets.items(), key=lambda item: _first(order, *item))
        ],
        "rows": [
            {**row, "name": name, "scores": by_column[name], "spreads": beside.get(name, {})}
            for name, row in rows.items()
        ],
    }


def _by_column(order: list[str], line: list[Any]) -> dict[str, Any]:
    """Column -> score, but for those that the paper does not print."""
    return {name: score for name, score in zip(order, line, strict=False) if score != MISSING}


def _first(order: list[str], name: str, dataset: dict[str, Any]) -> int:
    return min(order.index(column) for column in dataset.get("languages") or [name])


def _problem(one: Any) -> str:
    place = ".".join(str(part) for part in one["loc"])
    said = one["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{place}: {said}" if place else str(said)
