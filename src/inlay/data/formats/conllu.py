"""CoNLL-U, the format of Universal Dependencies: one record per sentence, a list per column.

Lines of multiword tokens (1-2) and of empty nodes (1.1) are skipped: the words of the tree remain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inlay.data.formats.text import Text
from inlay.data.record import Bad, Record, Source, shown

COLUMNS = ("tokens", "lemma", "upos", "xpos", "feats", "head", "deprel")
HINTS = {"task": "tagging", "tokens": "tokens", "tags": "upos"}
_WIDTH = 10
_SKIPPED = re.compile(r"\d+[-.]\d+")


def open_conllu(text: Text) -> Source:
    """Ten columns with tabs between them."""

    def read(bad: Bad) -> Iterator[Record]:
        return _sentences(text, bad)

    return Source(text.name, "conllu", COLUMNS, HINTS, text.notes(), read)


def looks_like_conllu(lines: Sequence[str]) -> bool:
    """Whether the first line that is no comment has ten columns and the number 1."""
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    cells = first.split("\t")
    return len(cells) == _WIDTH and bool(re.fullmatch(r"[01]([-.]\d+)?", cells[0]))


def _sentences(text: Text, bad: Bad) -> Iterator[Record]:
    rows: list[list[str]] = []
    start, problem = 0, False
    for number, line in text.lines():
        if not line.strip():
            if rows and not problem:
                yield _record(f"{text.name}:{start}", rows)
            rows, problem = [], False
            continue
        if line.startswith("#") or problem:
            continue
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) == _WIDTH and _SKIPPED.fullmatch(cells[0]):
            continue
        start = start if rows else number
        if wrong := _explain_row(cells, len(rows) + 1):
            problem = True
            bad(f"{text.name}:{number}", wrong)
        rows.append(cells)
    if rows and not problem:
        yield _record(f"{text.name}:{start}", rows)


def _record(place: str, rows: Sequence[Sequence[str]]) -> Record:
    return Record({name: [cells[i + 1] for cells in rows] for i, name in enumerate(COLUMNS)}, place)


def _explain_row(cells: Sequence[str], number: int) -> str:
    if len(cells) != _WIDTH:
        columns = "column" if len(cells) == 1 else "columns"
        return f"{len(cells)} {columns} ({shown(cells[0])} ...); CoNLL-U has {_WIDTH} with tabs between them"
    if cells[0] != str(number):
        return f"token {shown(cells[0])} where number {number} is expected; a blank line ends a sentence"
    if not cells[1].strip() or not cells[3].strip():
        return f"an empty {'word' if not cells[1].strip() else 'UPOS tag'}; an unknown value is written _"
    return ""
