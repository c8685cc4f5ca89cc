"""CSV and TSV: the delimiter, the quoting and whether there is a header are seen from the beginning of the file.

CSV is read with quotes. TSV is read without (GLUE and SMS have stray ones), unless every quote in the sample is
placed as a writer of quoted files would place it. The first row is the header unless it looks like data: see
`has_header`. The columns of a file without a header are column1, column2 and so on.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from inlay.data.formats.text import MAX_LINE, Text
from inlay.data.record import Bad, Record, Source, shown
from inlay.errors import DataError

_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_NAMES_OF_COLUMNS = (
    "abstract answer answers body category class comment content context document emotion gold_label hypothesis id "
    "idx index intent is_duplicate label labels lang language message passage polarity premise quality query "
    "question rating review score sentence sentiment stars tag tags target text text_a text_b title token tokens "
    "topic tweet utterance word"
)
_USUAL = frozenset(_NAMES_OF_COLUMNS.split())
_LONG, _WORDS = 60, 5


class Form(NamedTuple):
    """How the cells of a row are told apart."""

    delimiter: str
    quoted: bool


class Row(NamedTuple):
    """A row and the line on which it starts; it has no cells if it has a problem."""

    line: int
    cells: list[str]
    problem: str = ""


def open_csv(text: Text) -> Source:
    """A table with quotes; the delimiter is sniffed."""
    return _open_table(text, "csv", Form(sniff_delimiter(text), True))


def open_tsv(text: Text) -> Source:
    """A table with tabs, and with quotes only where the file clearly has them."""
    return _open_table(text, "tsv", Form("\t", clearly_quoted(text)))


def rows(text: Text, form: Form) -> Iterator[Row]:
    """The rows that are not blank, one after the other."""
    plain = (Row(number, line.rstrip("\r\n").split(form.delimiter)) for number, line in text.lines())
    read = _quoted(text, form.delimiter) if form.quoted else plain
    return (row for row in read if row.problem or len(row.cells) > 1 or "".join(row.cells).strip())


def sample(text: Text, form: Form, strict: bool = False) -> list[list[str]]:
    """The rows of the head; one that cannot be read is left out, or becomes a row of no cells if `strict`."""
    lines = text.head_lines()
    if not form.quoted:
        return [line.rstrip("\r\n").split(form.delimiter) for line in lines if line.strip(" \r\n")]
    reader = _reader(lines, form.delimiter)
    sampled: list[list[str]] = []
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return sampled
        except csv.Error as error:
            is_cut_off = not text.whole and "unexpected end" in str(error)
            if strict and not is_cut_off:
                sampled.append([])
            continue
        if "".join(row).strip() or len(row) > 1:
            sampled.append(row)


def table(
    text: Text,
    form: Form,
    format: str,
    columns: Sequence[str],
    skip: int,
    hints: Mapping[str, str],
    notes: Sequence[str] = (),
) -> Source:
    """A table with these columns; `skip` rows, the header, are not records."""
    names = tuple(columns)

    def read(bad: Bad) -> Iterator[Record]:
        for number, row in enumerate(rows(text, form)):
            if number < skip:
                continue
            place = f"{text.name}:{row.line}"
            if row.problem or len(row.cells) != len(names):
                bad(place, row.problem or _explain_width(row.cells, names, form))
            else:
                yield Record(dict(zip(names, row.cells, strict=True)), place)

    return Source(text.name, format, names, hints, (*text.notes(), *notes), read)


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns.

    It does if all its cells are usual names (text, label, sentence1 ...). It does not if a cell comes again further
    down in its column. Otherwise it does if one cell is a usual name, and does not if it is the only row or has one
    cell, an empty cell between others, a number, or a sentence. Any other row is taken to be a header.
    """
    first, below = [cell.strip() for cell in rows[0]], rows[1:]
    usual = [cell.lower().rstrip("0123456789_") in _USUAL for cell in first if cell]
    if usual and all(usual):
        return True
    if any(cell and i < len(row) and row[i].strip() == cell for row in below for i, cell in enumerate(first)):
        return False
    if any(usual):
        return True
    return bool(below) and len(first) > 1 and all(first[1:-1]) and not any(map(_looks_like_data, first))


def clearly_quoted(text: Text) -> bool:
    """Whether a file with tabs was written with quotes, as by pandas: then quotes only stand around cells."""
    lines = text.head_lines()
    cells = [cell for line in lines for cell in line.rstrip("\r\n").split("\t") if '"' in cell]
    if not cells:
        return False
    if all(len(c) > 1 and c[0] == c[-1] == '"' and '"' not in c[1:-1].replace('""', "") for c in cells):
        return True
    widths = [{len(row) for row in sample(text, Form("\t", quoted), strict=True)} for quoted in (True, False)]
    return len(widths[0]) == 1 and len(widths[1]) > 1 and 0 not in widths[0]


def sniff_delimiter(text: Text) -> str:
    """The delimiter that gives the most rows as many cells as the first one; a comma if none does.

    A row that cannot be read counts against a delimiter: with a wrong one, a quoted file has only such rows.
    """

    def fit(delimiter: str) -> tuple[float, int]:
        sampled = sample(text, Form(delimiter, True), strict=True)
        width = next((len(row) for row in sampled if row), 1)
        return (sum(len(row) == width for row in sampled) / len(sampled), width) if width > 1 else (0.0, 0)

    return max(_DELIMITERS, key=fit)  # the first of equals


def _open_table(text: Text, format: str, form: Form) -> Source:
    sampled = sample(text, form)
    notes = [f"the delimiter is a {_DELIMITERS[form.delimiter]}"] if form.quoted and form.delimiter != "," else []
    if sampled and not has_header(sampled):
        width = Counter(map(len, sampled)).most_common(1)[0][0]
        columns = [f"column{i + 1}" for i in range(width)]
        notes.append(f"no header row: columns are named {_listed(columns)}")
        return table(text, form, format, columns, 0, {}, notes)
    header = next(rows(text, form), None)
    if header is None:
        raise DataError(f"{text.name}: no rows; expected at least one")
    if header.problem:
        raise DataError(f"{text.name}:{header.line}: {header.problem}")
    columns = _read_header(f"{text.name}:{header.line}", header.cells)
    if text.whole and len(sampled) == 1 and len(list(rows(text, form))) == 1:
        raise DataError(f"{text.name}:{header.line}: a header row and nothing below it; expected rows")
    if not any(name.lower().rstrip("0123456789_") in _USUAL for name in columns):
        notes.append(f"the first row is taken as the header: {_listed(columns)}")
    return table(text, form, format, columns, 1, {}, notes)


def _read_header(place: str, cells: Sequence[str]) -> list[str]:
    """The names of the columns; the first may have none: it is the index that pandas writes."""
    names = [cell.strip() for cell in cells]
    for i, name in enumerate(names):
        if not name and 0 < i < len(names) - 1:
            raise DataError(f"{place}: header cell {i + 1} is empty; every column needs a name")
        if name and name in names[:i]:
            first = names.index(name) + 1
            raise DataError(
                f"{place}: the header has {shown(name)} twice (cells {first} and {i + 1}); "
                "every column needs a name of its own"
            )
    return [name or f"column{i + 1}" for i, name in enumerate(names)]


def _listed(columns: Sequence[str], most: int = 6) -> str:
    return ", ".join(columns[:most]) + (f" ... {columns[-1]}" if len(columns) > most else "")


def _looks_like_data(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        words = cell.split()
        sentence = len(words) > 1 and cell[-1] in ".!?"
        return len(cell) > _LONG or len(words) > _WORDS or sentence or cell.startswith(("http://", "https://"))
    return True


def _explain_width(cells: Sequence[str], columns: Sequence[str], form: Form) -> str:
    count = f"{len(cells)} cell{'s' if len(cells) != 1 else ''}"
    expected = f"{len(columns)} {'are' if len(columns) != 1 else 'is'} expected ({_listed(columns)})"
    advice = ""
    if any("\n" in cell for cell in cells):
        advice = "; the row runs over several lines: is a quote missing?"
    elif form.quoted and len(cells) > len(columns):
        advice = f"; a cell with {form.delimiter!r} in it needs quotes"
    return f"{count} where {expected}{advice}"


class _Feed:
    """Hands lines to the csv reader, which takes more of them as long as a quote is open."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.lines = text.lines()
        self.line = self.start = self.size = 0
        self.ended = False

    def row(self) -> int:
        """Begin a new row: the line on which it starts."""
        self.start, self.size = self.line + 1, 0
        return self.start

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            self.line, line = next(self.lines)
        except StopIteration:
            self.ended = True
            raise
        self.size += len(line)
        if self.size > MAX_LINE:
            raise self.unclosed()
        return line

    def unclosed(self) -> DataError:
        return DataError(
            f"{self.text.name}:{self.start}: a quote that opens in this row is never closed; "
            'a quote inside a quoted cell is written twice ("")'
        )


def _quoted(text: Text, delimiter: str) -> Iterator[Row]:
    feed = _Feed(text)
    reader = _reader(feed, delimiter)
    while True:
        start = feed.row()
        try:
            yield Row(start, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            if feed.ended:
                raise feed.unclosed() from None
            yield Row(start, [], _explain_error(str(error)))


def _reader(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # global, and 128 KiB is less than a long document
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _explain_error(error: str) -> str:
    if "expected after" in error:
        return 'text after a closing quote; a quote inside a quoted cell is written twice ("")'
    if "new-line" in error:
        return "a carriage return inside a cell; put the cell in quotes"
    return f"{error}; expected cells with a delimiter between them"
