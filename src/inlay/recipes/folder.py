"""Where the datasets of a recipe are in somebody's folder: one folder, or one file, for each.

Names are compared without regard to case and to anything but letters and digits: SST-2, sst2 and sst_2.csv are one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.data.folder import find_splits
from inlay.data.formats.sniff import BY_EXTENSION, extension
from inlay.errors import DataError, InlayError, RunError
from inlay.recipes.recipe import Dataset, Recipe


@dataclass(frozen=True)
class Found:
    """A dataset in a folder, as `inlay.Run` takes it."""

    dataset: Dataset
    data: str
    test: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """What says where the rows are."""
        return {"data": self.data} | ({} if self.test is None else {"test": self.test})


def look(recipe: Recipe, folder: str | os.PathLike[str], datasets: Sequence[Dataset]) -> tuple[list[Found], list[str]]:
    """The datasets that are there, and a line for each that is not; none at all is an error."""
    root = Path(folder)
    try:
        entries = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise RunError(f"{root}: cannot be read as a folder of datasets: {error.strerror}") from None
    found, missing = [], []
    for dataset in datasets:
        try:
            found.append(_found(recipe, dataset, entries, root))
        except InlayError as error:
            missing.append(f"{dataset.name}: {error}")
    if not found:
        raise RunError(f"{root}: holds no dataset of {recipe.name}; {'; '.join(missing)}")
    return found, missing


def _found(recipe: Recipe, dataset: Dataset, entries: Sequence[Path], root: Path) -> Found:
    by_name = {_plain(path): path for path in reversed(entries) if _may_be(path)}
    path = next((by_name[_letters(name)] for name in dataset.places if _letters(name) in by_name), None)
    if path is None:
        raise DataError(f"no folder or file named {' or '.join(dataset.places)}")
    splits = find_splits(path, dataset.mismatched) if path.is_dir() else {"train": path}
    if "train" not in splits:
        raise DataError(f"{path.name} has no training rows")
    if recipe.dev_is_test:
        if "validation" not in splits:
            raise DataError(f"{path.name} has no dev rows, which this recipe tests on")
        return Found(dataset, str(splits["train"]), str(splits["validation"]))
    return Found(dataset, f"{path}-mm" if dataset.mismatched and not path.name.endswith("mm") else str(path))


def _may_be(path: Path) -> bool:
    return path.is_dir() or extension(path.name) in BY_EXTENSION


def _plain(path: Path) -> str:
    return _letters(path.name if path.is_dir() else path.name.partition(".")[0])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
