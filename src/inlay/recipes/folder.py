"""Finds the datasets of a recipe in a folder: one folder or file for each.

Only letters and digits of names are compared, and case is ignored: SST-2, sst2 and sst_2.csv are the same.
A dataset with languages is a folder like XTREME's: train-en.tsv, dev-en.tsv, test-de.tsv, or a folder per language.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inlay.data.folder import are_treebanks, find_languages, find_splits, join, language_of, split_of
from inlay.data.formats.sniff import BY_EXTENSION, extension
from inlay.errors import DataError, InlayError, RunError
from inlay.recipes.recipe import Dataset, Recipe, listed


@dataclass(frozen=True)
class Found:
    """A dataset in a folder, as `inlay.Run` takes it."""

    dataset: Dataset
    data: str
    val: str | None = None
    test: str | None = None
    has_test: bool = False
    """Whether it comes with test rows, here or in its folder."""
    published: Mapping[str, str] = field(default_factory=dict)
    """The columns and the encoding of the published file, if this one has them too."""
    languages: Mapping[str, Path] = field(default_factory=dict)
    """Language -> the file that it is scored on."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings that say where the rows are."""
        files = {"data": self.data, "val": self.val, "test": self.test}
        return {key: value for key, value in files.items() if value is not None} | dict(self.published)


def look(recipe: Recipe, folder: str | os.PathLike[str], datasets: Sequence[Dataset]) -> tuple[list[Found], list[str]]:
    """The datasets that are there, and a line for each that is not; an error if none is there."""
    root = Path(folder)
    try:
        entries = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise RunError(f"{root}: cannot be read as a folder of datasets: {error.strerror}") from None
    found, missing = [], []
    for dataset in datasets:
        try:
            found.append(_found(recipe, dataset, entries))
        except InlayError as error:
            missing.append(f"{dataset.name}: {error}")
    if not found:
        raise RunError(f"{root}: holds no dataset of {recipe.name}; {'; '.join(missing)}{_meant(root, datasets)}")
    return found, missing


def _found(recipe: Recipe, dataset: Dataset, entries: Sequence[Path]) -> Found:
    by_name = {_plain(path): path for path in reversed(entries) if _may_be(path)}
    path = next((by_name[_letters(name)] for name in dataset.places if _letters(name) in by_name), None)
    if path is None:
        raise DataError(f"no folder or file named {' or '.join(dataset.places)}")
    if dataset.languages:
        return _in_languages(dataset, path)
    splits = find_splits(path, dataset.mismatched) if path.is_dir() else {"train": path}
    if "train" not in splits:
        raise DataError(f"{path.name} has no training rows")
    published = _published(dataset, splits["train"])
    if recipe.dev_is_test:
        if "validation" not in splits:
            raise DataError(f"{path.name} has no dev rows, which this recipe tests on")
        return Found(dataset, str(splits["train"]), None, str(splits["validation"]), True, published)
    whole = f"{path}-mm" if dataset.mismatched and not path.name.endswith("mm") else str(path)
    return Found(dataset, whole, has_test="test" in splits, published=published)


def _in_languages(dataset: Dataset, path: Path) -> Found:
    """The training and dev files of the source language, and the file that each language is scored on."""
    if not path.is_dir():
        raise DataError(f"{path.name} is a file; expected a folder with files such as train-{dataset.source}.tsv")
    inside = [file for folder in path.iterdir() if folder.is_dir() for file in folder.iterdir()]
    files = [file for file in sorted([*path.iterdir(), *inside]) if file.is_file()]
    in_source = [file for file in files if _language(file) == dataset.source]
    train, val = ([file for file in in_source if split_of(file.name) == split] for split in ("train", "validation"))
    for split, files in (("training", train), ("dev", val)):
        if len(files) > 1 and not are_treebanks(files):
            names = listed([file.name for file in files])
            raise DataError(f"{path.name} has {len(files)} {split} files in {dataset.source} ({names}); expected one")
    if not train:
        raise DataError(f"{path.name} has no training file in {dataset.source}, such as train-{dataset.source}.tsv")
    known = {code: file for code, file in find_languages(path).items() if code in dataset.languages}
    if not known:
        raise DataError(f"{path.name} has no test file in any of its languages, such as test-de.tsv")
    return Found(dataset, join(train), join(val) if val else None, languages=known)


def _language(file: Path) -> str | None:
    return language_of(file.name) or language_of(file.parent.name)


def _published(dataset: Dataset, file: Path) -> Mapping[str, str]:
    """The encoding of the published file, if this one is not UTF-8 either; its columns, if this one has them all."""
    from inlay.data.source import open_source

    encoding = None if dataset.encoding is None or _is_utf8(file) else dataset.encoding
    settings = {} if encoding is None else {"encoding": encoding}
    columns = open_source(file, encoding=encoding).columns if dataset.columns else []
    return settings | (dict(dataset.columns) if all(name in columns for name in dataset.columns.values()) else {})


def _is_utf8(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8") as opened:
            return all(True for _ in opened)
    except UnicodeDecodeError:
        return False


def _meant(root: Path, datasets: Sequence[Dataset]) -> str:
    """The folder that was probably meant, if it is the one above or one below."""
    wanted = {_letters(name) for dataset in datasets for name in dataset.places}
    near = [root.resolve().parent] if _plain(root.resolve()) in wanted else []
    near += [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    for folder in near:
        try:
            if any(_may_be(path) and _plain(path) in wanted for path in folder.iterdir()):
                return f". Did you mean {folder}?"
        except OSError:
            continue
    return ""


def _may_be(path: Path) -> bool:
    return path.is_dir() or not extension(path.name) or extension(path.name) in BY_EXTENSION


def _plain(path: Path) -> str:
    return _letters(path.name if path.is_dir() else path.name.partition(".")[0])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
