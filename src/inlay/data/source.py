"""Opening input: a file, a folder or a hub dataset becomes a Source that streams its rows.

Opening reads only the beginning of a file, to see what it is. `records` streams, and may be called again; only JSON
documents are read whole.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from inlay.data.folder import NO_XML, find_languages, find_splits, parts_of
from inlay.data.formats import glue
from inlay.data.formats.conll import open_conll
from inlay.data.formats.conllu import open_conllu
from inlay.data.formats.delimited import Form, open_csv, open_tsv, sample, table
from inlay.data.formats.hub import open_hub
from inlay.data.formats.jsondoc import open_json
from inlay.data.formats.jsonl import open_jsonl
from inlay.data.formats.parquet import MAGIC, open_parquet
from inlay.data.formats.sniff import BY_EXTENSION, extension, sniff
from inlay.data.formats.squad import open_squad
from inlay.data.formats.text import Text, open_text, read_head
from inlay.data.record import Bad, Record
from inlay.data.record import Source as Source
from inlay.errors import DataError, suggest

_TEXT: Mapping[str, Callable[[Text], Source]] = {
    "csv": open_csv,
    "tsv": open_tsv,
    "json": open_json,
    "jsonl": open_jsonl,
    "conll": open_conll,
    "conllu": open_conllu,
    "squad": open_squad,
}
FORMATS = (*_TEXT, "glue", "parquet")
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_MARKUP = re.compile(r"\s*<(\?xml|!doctype|html)\b", re.IGNORECASE)
_MNLI = re.compile(r"(.*mnli)-(m|mm)", re.IGNORECASE)


def open_source(path: str | os.PathLike[str], *, format: str | None = None, encoding: str | None = None) -> Source:
    """Open a file, or several that commas join; a format or encoding that is not given is detected."""
    name, file = os.fspath(path), Path(path)
    if parts := parts_of(name):
        return _join_sources(name, [open_source(part, format=format, encoding=encoding) for part in parts])
    if format is not None and format not in FORMATS:
        raise DataError(f"{name}: unknown format {format!r}. {suggest(format, FORMATS)}")
    check_file(name)
    if format == "parquet" or (format is None and _is_parquet(name, file)):
        return open_parquet(name, file)
    text = open_text(name, file, encoding)
    if format is None and (extension(file.name) == "xml" or _MARKUP.match(text.head)):
        raise DataError(f"{name}: {NO_XML}")
    known = format or sniff(text)
    if known == "glue" or (format is None and known == "tsv"):
        source = _open_glue(text)
        if source is None and known == "glue":
            folders = ", ".join(glue.TASKS)
            raise DataError(f"{name}: the columns are not those of a GLUE task; valid folders: {folders}")
        if source is not None:
            return source
    return _TEXT[known](text)


def open_splits(data: str, *, format: str | None = None, encoding: str | None = None) -> dict[str, Source]:
    """Open a file (it is train), a folder with splits, or a hub dataset `name[:config]`."""
    files: dict[str, Path] = {}
    if os.path.isdir(data):
        files = find_splits(Path(data))
    elif os.path.exists(data) or _means_file(data):
        files = {"train": Path(data)}
    elif (mnli := _MNLI.fullmatch(data)) and os.path.isdir(mnli[1]):
        files = find_splits(Path(mnli[1]), mismatched=mnli[2].lower() == "mm")
    if files:
        return {split: open_source(file, format=format, encoding=encoding) for split, file in files.items()}
    if is_local(data):
        raise DataError(f"there is no file or folder {data!r}")
    return open_hub(data)


def is_local(data: str) -> bool:
    """Whether it is, or was meant as, a file or a folder, and not a hub dataset."""
    if os.path.exists(data) or _means_file(data) or not _HUB.fullmatch(data):
        return True
    mnli = _MNLI.fullmatch(data)
    return mnli is not None and os.path.isdir(mnli[1])


def open_per_language(
    folder: str | os.PathLike[str], *, format: str | None = None, encoding: str | None = None
) -> dict[str, Source]:
    """Open one file per language, for zero-shot evaluation: language code -> source."""
    path = Path(folder)
    if not os.path.isdir(path):
        raise DataError(f"{os.fspath(folder)}: expected a folder with one file or folder per language")
    return {code: open_source(f, format=format, encoding=encoding) for code, f in find_languages(path).items()}


def _join_sources(name: str, parts: Sequence[Source]) -> Source:
    """The rows of several files, one after the other."""
    first = parts[0]
    for other in parts[1:]:
        if (other.format, other.columns) != (first.format, first.columns):
            descriptions = (f"{part.name} is {part.format} with {', '.join(part.columns)}" for part in (first, other))
            raise DataError(f"these files have different columns, so they cannot be joined: {'; '.join(descriptions)}")

    def read(bad: Bad) -> Iterator[Record]:
        for part in parts:
            yield from part.records(bad)

    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Source(name, first.format, first.columns, first.hints, notes, read)


def check_file(name: str) -> None:
    """Raise an error if this is not a file that can be read twice."""
    file = Path(name)
    if os.path.isdir(file):
        raise DataError(f"{name}: this is a folder; expected a file")
    if not os.path.exists(file):
        beside = os.listdir(file.parent) if os.path.isdir(file.parent) else []
        near = difflib.get_close_matches(file.name, beside, n=1, cutoff=0.5)
        raise DataError(f"{name}: there is no such file" + (f". Did you mean {near[0]}?" if near else ""))
    if not os.path.isfile(file):  # a pipe cannot be read twice
        raise DataError(f"{name}: not a regular file; write it to disk first")


def _means_file(data: str) -> bool:
    """Whether a name that does not exist was meant as a file: its extension says so."""
    return extension(data) in BY_EXTENSION


def _is_parquet(name: str, file: Path) -> bool:
    return BY_EXTENSION.get(extension(file.name)) == "parquet" or read_head(name, file)[0].startswith(MAGIC)


def _open_glue(text: Text) -> Source | None:
    """A file of GLUE, with hints; None if it is another."""
    form = Form("\t", False)
    rows = sample(text, form)
    if glue.is_cola(rows):
        return table(text, form, "glue", glue.COLA, 0, glue.hints("cola", glue.COLA))
    columns = [cell.strip() for cell in rows[0]]
    task = glue.recognise(text.path.resolve().parent.name, columns)
    if task is None or len(set(columns)) < len(columns):
        return None
    return table(text, form, "glue", columns, 1, glue.hints(task, columns))
