"""Which format a text file has: that of its extension, unless its content is plainly another."""

from __future__ import annotations

import json
import re

from inlay.data.formats.conll import looks_like_conll
from inlay.data.formats.conllu import looks_like_conllu
from inlay.data.formats.delimited import Form, has_header, sample, sniff_delimiter
from inlay.data.formats.text import Text

BY_EXTENSION = {
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "json": "json",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "conll": "conll",
    "conll03": "conll",
    "bio": "conll",
    "iob": "conll",
    "iob2": "conll",
    "conllu": "conllu",
    "parquet": "parquet",
    "pq": "parquet",
    "txt": "",
}
"""Extensions of files with data; where the format is empty, the content decides."""


def extension(name: str) -> str:
    """`train.csv.gz` -> csv."""
    parts = name.lower().removesuffix(".gz").rsplit(".", 1)
    return parts[1] if len(parts) == 2 else ""


def sniff(text: Text) -> str:
    """The format of a text file."""
    by_extension = BY_EXTENSION.get(extension(text.path.name), "")
    lines = text.head_lines()
    if by_extension == "csv":
        return "csv"
    if by_extension == "jsonl":
        return "json" if text.head.lstrip()[0] == "[" else "jsonl"
    if by_extension == "json" or (not by_extension and text.head.lstrip()[0] in "{["):
        return _json(text)
    if by_extension == "conllu" or (by_extension in ("", "conll") and looks_like_conllu(lines)):
        return "conllu"
    if by_extension == "conll" or looks_like_conll(lines):
        return "conll"
    return "csv" if _commas(text) else "tsv"


def _json(text: Text) -> str:
    """A document of rows, SQuAD's, or one object per line: many files called .json are that."""
    head = text.head.lstrip()
    if head[0] != "{":
        return "json"
    lines = [line for line in text.head_lines() if line.strip()]
    try:
        first = json.loads(lines[0])
    except ValueError:  # the first line is a part of something larger
        if re.search(r'"data"\s*:\s*\[', head) and '"paragraphs"' in head:
            return "squad"
        bare = len(lines) == 1 and not text.whole and not re.match(r'\{\s*"(\\.|[^"\\])*"\s*:\s*\{', head)
        return "jsonl" if bare or _starts_rows(lines) else "json"
    if len(lines) == 1 and isinstance(first.get("data"), list) and '"paragraphs"' in head:
        return "squad"
    whole = len(lines) == 1 and text.whole and all(isinstance(value, dict) for value in first.values())
    return "json" if whole else "jsonl"


def _starts_rows(lines: list[str]) -> bool:
    """Whether most lines begin an object: these are lines of JSON, and the first is wrong."""
    return len(lines) > 1 and sum(line.startswith("{") for line in lines) > len(lines) / 2


def _commas(text: Text) -> bool:
    """Whether a file of unknown extension, without tabs, is a CSV: with a usual header and rows as wide."""
    if "\t" in text.head:
        return False
    rows = sample(text, Form(sniff_delimiter(text), True))
    return len(rows) > 1 and len(rows[0]) > 1 and {len(row) for row in rows} == {len(rows[0])} and has_header(rows)
