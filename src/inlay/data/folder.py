"""Which files of a folder are which split, or which language, going by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from inlay.data.formats.glue import task_of
from inlay.data.formats.sniff import BY_EXTENSION, extension
from inlay.data.languages import DISTANT, INDO_EUROPEAN
from inlay.errors import DataError

NO_XML = "XML and HTML are not supported; convert it to CSV, or to JSON lines with one object per row"
SPLITS = ("train", "validation", "test")
_WORDS = {
    "train": ["train", "training"],
    "validation": ["validation", "valid", "val", "dev", "development", "eval"],
    "test": ["test", "testing"],
}
_SPLIT = {word: split for split, words in _WORDS.items() for word in words}
_UD = re.compile(r"([a-z]{2,3})_\w+-ud-")
_CODES = {code for code in INDO_EUROPEAN | DISTANT if len(code) == 2} | {"bi", "eo", "ht", "ia", "ie", "io", "vo"}
"""ISO 639-1: the languages of a family, creoles and made-up languages."""


def find_splits(folder: Path, mismatched: bool = False) -> dict[str, Path]:
    """Split -> file. A folder with one file that names no split gives it as train.

    MNLI has two dev and two test sets; `mismatched`, or a folder named MNLI-mm, takes the second.
    """
    mismatched = mismatched or folder.name.lower().endswith("-mm")
    files = _data_files(folder)
    file_of_split: dict[str, Path] = {}
    for split in SPLITS:
        candidates = _prefer([f for f in files if split_of(f.name) == split], split, mismatched)
        if len(candidates) > 1:
            raise DataError(
                f"{folder}: {len(candidates)} files for {split} ({_listed(candidates)}); expected one, or give the file"
            )
        if candidates:
            file_of_split[split] = candidates[0]
    if not file_of_split and task_of(folder.name) == "ax" and len(files) == 1:
        return {"test": files[0]}
    if not file_of_split and len(files) == 1:
        return {"train": files[0]}
    if not file_of_split:
        xml = f"; {NO_XML}" if any(extension(f.name) == "xml" for f in _entries(folder)) else ""
        there = _listed(_all_entries(folder))
        raise DataError(f"{folder}: no file named train, dev or test, as in train.csv; found {there}{xml}")
    return file_of_split


def find_languages(folder: Path) -> dict[str, Path]:
    """Language -> the file to evaluate on: its test file, else its dev file; several treebanks are joined."""
    files_of_language: dict[str, list[Path]] = {}
    for file in _data_files(folder):
        if code := language_of(file.name):
            files_of_language.setdefault(code, []).append(file)
    for inner in sorted(f for f in _entries(folder) if f.is_dir()):
        for file in _data_files(inner):
            if code := (_code_alone(inner.name) or language_of(file.name)):
                files_of_language.setdefault(code, []).append(file)
    to_evaluate = ((code, _choose_file(folder, code, files_of_language[code])) for code in sorted(files_of_language))
    file_of_language = {code: file for code, file in to_evaluate if file}
    if not file_of_language:
        lacking = "no file to test on" if files_of_language else "no language code in the names of its files"
        as_in = "as in de.csv, dev-de.tsv or de/test.csv"
        raise DataError(f"{folder}: {lacking}, {as_in}; found {_listed(_all_entries(folder))}")
    return file_of_language


def join(files: Iterable[str | os.PathLike[str]]) -> str:
    """A name for files that are read one after the other, as if they were one: `a.conllu,b.conllu`."""
    return ",".join(os.fspath(file) for file in files)


def parts_of(name: str) -> list[str]:
    """The files that a name with commas joins; none if it names a single file."""
    parts = [part.strip() for part in name.split(",")]
    is_joined = len(parts) > 1 and all(extension(part) in BY_EXTENSION for part in parts) and not os.path.exists(name)
    return parts if is_joined else []


def files_of(name: str) -> list[str]:
    """The files that a name stands for: one, or several that commas join."""
    return parts_of(name) or [name]


def are_treebanks(files: Iterable[Path]) -> bool:
    """Whether these are files of UD treebanks; a language may have several: `en_ewt-ud-train.conllu`."""
    return all(_UD.match(file.name) for file in files)


def split_of(name: str) -> str | None:
    """The split that a file's name contains: `en_ewt-ud-train.conllu`, `train_subset.json`, `dev_matched.tsv`."""
    return next((_SPLIT[word] for word in _parts(name) if word in _SPLIT), None)


def language_of(name: str) -> str | None:
    """The language code in a file's name: two letters of ISO 639-1, or three letters that are the whole name."""
    if treebank := _UD.match(name):
        return treebank.group(1)
    parts = [part for part in _parts(_stem(name)) if part not in _SPLIT]
    codes = [part for part in parts if part in _CODES]
    if codes:
        return codes[-1]
    return _code_alone(parts[0]) if len(parts) == 1 else None


def _code_alone(name: str) -> str | None:
    return name if name in _CODES or (re.fullmatch("[a-z]{3}", name) and name not in _SPLIT) else None


def _choose_file(folder: Path, code: str, files: list[Path]) -> Path | None:
    for split in ("test", "validation", None):
        candidates = [file for file in files if split_of(file.name) == split]
        if len(candidates) > 1 and are_treebanks(candidates):
            return Path(join(sorted(candidates)))
        if len(candidates) > 1:
            raise DataError(
                f"{folder}: {len(candidates)} files for language {code} ({_listed(candidates)}); expected one"
            )
        if candidates:
            return candidates[0]
    return None  # only a training file: nothing to evaluate on


def _prefer(files: list[Path], split: str, mismatched: bool) -> list[Path]:
    """`train.csv` rather than `train_small.csv`; `dev_matched.tsv` rather than its twin."""
    exact = [file for file in files if _stem(file.name).lower() in _WORDS[split]]
    named = [f for f in files if _stem(f.name).endswith("_mismatched" if mismatched else "_matched")]
    return exact or (named if len(named) == 1 else files)


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-zA-Z0-9]+", name) if part]


def _stem(name: str) -> str:
    bare = name.removesuffix(".gz")
    return bare.rsplit(".", 1)[0] if extension(name) in BY_EXTENSION else bare


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(f for f in folder.iterdir() if not f.name.startswith((".", "_")))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def _data_files(folder: Path) -> list[Path]:
    """Files with a known extension; where there are none, those without extension."""
    files = [f for f in _entries(folder) if f.is_file() and not f.name.lower().startswith(("readme", "license"))]
    known = [f for f in files if extension(f.name) in BY_EXTENSION]
    return known or [f for f in files if not extension(f.name)]


def _all_entries(folder: Path) -> list[Path]:
    return [*_data_files(folder), *(f for f in _entries(folder) if f.is_dir())] or _entries(folder)


def _listed(files: Iterable[Path], most: int = 8) -> str:
    names = [file.name for file in files]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + rest) or "nothing"
