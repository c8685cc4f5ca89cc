"""CoNLL columns: a word and its tag per line, sentences apart by blank lines.

The first column is the word, the last one the tag; a file of one column has only words. A line that starts with #
before a sentence is a comment, unless it has as many cells as the other lines: then # is a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from inlay.data.formats.text import Text
from inlay.data.record import Bad, Record, Source, shown
from inlay.errors import DataError

HINTS = {"task": "tagging", "tokens": "tokens", "tags": "tags"}
_TAG = re.compile(r"O|[BIESLU]-\S+")
_DOCUMENT = "-DOCSTART-"


def open_conll(text: Text) -> Source:
    """Words and tags; the number of columns is that of most lines."""
    separator, width = _shape(text.head_lines())
    if width == 0:
        raise DataError(f"{text.name}: no words; expected a word and its tag on each line")

    def read(bad: Bad) -> Iterator[Record]:
        return _sentences(text, separator, width, bad)

    columns = ("tokens", "tags") if width > 1 else ("tokens",)
    notes = text.notes() if width > 1 else (*text.notes(), "one column: words without tags")
    hints = {key: HINTS[key] for key in ("task", *columns)}
    return Source(text.name, "conll", columns, hints, notes, read)


def looks_like_conll(lines: Sequence[str]) -> bool:
    """Whether most lines are a word and a tag: BIO tags, or no spaces in cells and blank lines between sentences."""
    separator, width = _shape(lines)
    rows = [cells for line in lines if (cells := _cells(line, separator)) and cells[0] != _DOCUMENT]
    if width < 2 or not rows:
        return False
    if _share(bool(_TAG.fullmatch(cells[-1])) for cells in rows) > 0.9:
        return True
    stripped = [line.strip() for line in "".join(lines).strip().splitlines()]
    blank = stripped.count("")
    plain = _share(len(c) == width and not any(" " in cell for cell in (c[0], c[-1])) for c in rows) > 0.9
    tags = {cells[-1] for cells in rows}
    return separator == "\t" and len(rows) / 100 < blank <= len(rows) / 2 and plain and len(tags) <= len(rows) / 2


def _sentences(text: Text, separator: str | None, width: int, bad: Bad) -> Iterator[Record]:
    rows: list[list[str]] = []
    start, problem = 0, False
    for number, line in text.lines():
        cells = _cells(line, separator)
        if not cells or cells[0] == _DOCUMENT:
            if rows and not problem:
                yield _record(f"{text.name}:{start}", rows)
            rows, problem = [], False
            continue
        if not rows and not problem and line.startswith("#") and (len(cells) != width or " = " in line):
            continue
        start = start if rows else number
        rows.append(cells)
        if not problem and (len(cells) != width or not cells[0].strip() or not cells[-1].strip()):
            problem = True
            bad(f"{text.name}:{number}", _explain_row(cells, width, separator))
    if rows and not problem:
        yield _record(f"{text.name}:{start}", rows)


def _record(place: str, rows: Sequence[Sequence[str]]) -> Record:
    fields = {"tokens": [cells[0] for cells in rows]}
    if len(rows[0]) > 1:
        fields["tags"] = [cells[-1].strip() for cells in rows]
    return Record(fields, place)


def _explain_row(cells: Sequence[str], width: int, separator: str | None) -> str:
    if len(cells) == width:
        return f"an empty {'word' if not cells[0].strip() else 'tag'}; expected a word and its tag"
    columns = "column" if len(cells) == 1 else "columns"
    apart = "tabs" if separator else "spaces"
    expected = f"{width} with {apart} between them, the word first" + (" and its tag last" if width > 1 else "")
    return f"{len(cells)} {columns} for the word {shown(cells[0])}; expected {expected}"


def _shape(lines: Sequence[str]) -> tuple[str | None, int]:
    """Tab or any space, and how many columns most lines have."""
    words = [line for line in lines if line.strip() and not line.startswith("#")] or [x for x in lines if x.strip()]
    separator = "\t" if _share("\t" in line for line in words) > 0.5 else None
    widths = Counter(len(_cells(line, separator)) for line in words)
    return separator, widths.most_common(1)[0][0] if widths else 0


def _cells(line: str, separator: str | None) -> list[str]:
    if not line.strip():
        return []
    return line.rstrip("\r\n").split(separator)


def _share(flags: Iterator[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else 0.0
