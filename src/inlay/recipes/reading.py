"""Recipes by name, and from TOML: one error names everything that is wrong in a file.

Scores are written as the paper prints them, a line for every row and the columns in the paper's order, so that they are
easy to compare.
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
"""Instead of a score that the paper does not print."""


def names() -> list[str]:
    """All recipes that come with Inlay."""
    files = resources.files("inlay.recipes").iterdir()
    return sorted(file.name.removesuffix(_ENDING) for file in files if file.name.endswith(_ENDING))


def find(name: str | os.PathLike[str]) -> Recipe:
    """A recipe by its name, or from your own file by its path."""
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
    """A recipe from TOML; errors call it `where`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{where}: is not TOML: {error}") from None
    try:
        return Recipe.model_validate({**_arranged(content, where), "name": name})
    except ValidationError as error:
        raise RunError(f"{where}: " + "; ".join(_problem(details) for details in error.errors())) from None


def _arranged(content: dict[str, Any], where: str) -> dict[str, Any]:
    """The tables of the file as the recipe has them: datasets in the paper's order, rows with their scores."""
    tables = {key: content.get(key) for key in ("datasets", "rows", "scores")}
    tables["spreads"] = content.get("spreads", {})
    for key, table in tables.items():
        values, type_of_value = ("tables", dict) if key in ("datasets", "rows") else ("lists", list)
        if not isinstance(table, dict) or not all(isinstance(value, type_of_value) for value in table.values()):
            raise RunError(f"{where}: expected a table [{key}] of {values}")
    datasets, rows, scores, spreads = (dict(table or {}) for table in tables.values())
    languages = {name: dataset.get("languages") for name, dataset in datasets.items()}
    columns_of = {name: codes if codes and isinstance(codes, list) else [name] for name, codes in languages.items()}
    columns = [column for names in columns_of.values() for column in names]
    order: list[str] = scores.pop("order", columns)
    problems = [f"{name} is in order, but not in [datasets]" for name in order if name not in columns]
    problems += [f"{name} is in [datasets], but not in order" for name in columns if name not in order]
    problems += [f"[rows.{name}] has no scores" for name in rows if name not in scores]
    for kind, table in (("scores", scores), ("spreads", spreads)):
        for name, line in table.items():
            if name not in rows:
                problems.append(f"{kind} of {name} have no [rows.{name}]")
            elif len(line) not in (0, len(order)):  # 0: the paper prints none of them
                problems.append(f"{name} has {len(line)} {kind} for {len(order)} columns")
    if problems:
        raise RunError(f"{where}: {'; '.join(problems)}")
    place = {name: min(map(order.index, columns)) for name, columns in columns_of.items()}
    by_column = {name: _by_column(order, line) for name, line in scores.items()}
    spreads_of = {name: _by_column(order, line) for name, line in spreads.items()}
    return {
        **{key: value for key, value in content.items() if key not in tables},
        "datasets": [datasets[name] | {"name": name} for name in sorted(datasets, key=place.__getitem__)],
        "rows": [
            {**row, "name": name, "scores": by_column[name], "spreads": spreads_of.get(name, {})}
            for name, row in rows.items()
        ],
    }


def _by_column(order: list[str], line: list[Any]) -> dict[str, Any]:
    """Column -> score, without those that the paper does not print."""
    return {name: score for name, score in zip(order, line, strict=False) if score != MISSING}


def _problem(details: Any) -> str:
    place = ".".join(str(part) for part in details["loc"])
    message = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{place}: {message}" if place else str(message)
