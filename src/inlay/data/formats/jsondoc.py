"""JSON documents: an array of objects, or an object of objects. Read whole, one object at a time.

The place of a row is the line on which its object starts, so this module walks the document and only leaves the
values to the decoder.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from inlay.data.formats.jsonl import LOOK, kind, unusable
from inlay.data.formats.text import Text
from inlay.data.record import Bad, Record, Source, shown
from inlay.errors import DataError

_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class Value(NamedTuple):
    """A decoded value and where its source starts and ends."""

    value: Any
    start: int
    end: int
    key: str | None = None


class Document:
    """The text of a JSON file and its line numbers."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.closed = 0
        """The end of the array or object that was walked last."""
        self._seen = (0, 1)

    def place(self, start: int) -> str:
        """File and line of a position; positions are asked for in rising order."""
        at, line = self._seen if self._seen[0] <= start else (0, 1)
        self._seen = (start, line + self.source.count("\n", at, start))
        return f"{self.name}:{self._seen[1]}"

    def at(self, start: int) -> str:
        """The character at a position; "" at the end."""
        return self.source[start : start + 1]

    def values(self, start: int) -> Iterator[Value]:
        """The values of the array that starts here, or of the object, with their keys."""
        close = "]" if self.at(start) == "[" else "}"
        at = self.skip(start + 1)
        if self.at(at) == close:
            self.closed = at + 1
            return
        while True:
            key = None
            if close == "}":
                if self.at(at) != '"':
                    raise self.wrong(at, "not JSON: expected a key in quotes")
                key, at = self._decoded(at)
                at = self._expect(self.skip(at), ":")
            value, end = self._decoded(at)
            yield Value(value, at, end, key)
            at = self.skip(end)
            if self.at(at) == close:
                self.closed = at + 1
                return
            at = self._expect(at, ",")

    def ends(self) -> None:
        """Raise an error if anything follows what was walked last."""
        if (rest := self.skip(self.closed)) < len(self.source):
            raise self.wrong(rest, f"more text after the end of the document: {shown(self.source[rest : rest + 20])}")

    def wrong(self, start: int, problem: str) -> DataError:
        """An error at a position."""
        return DataError(f"{self.place(start)}: {problem}")

    def _expect(self, at: int, character: str) -> int:
        if self.at(at) != character:
            there = shown(self.at(at)) if self.at(at) else "the end of the file"
            raise self.wrong(at, f"not JSON: expected {character!r}, found {there}")
        return self.skip(at + 1)

    def _decoded(self, at: int) -> tuple[Any, int]:
        try:
            return _decode(self.source, at)
        except json.JSONDecodeError as error:
            raise self.wrong(
                min(error.pos, len(self.source)), f"not JSON: {error.msg} (column {error.colno})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise self.wrong(at, f"this JSON cannot be read: {error}") from None

    def skip(self, at: int) -> int:
        """The next position that is no white space."""
        space = _SPACE.match(self.source, at)
        return space.end() if space else at


def open_json(text: Text) -> Source:
    """An array of objects, or an object whose values are objects."""
    columns = _columns(text.name, text.head, cut=True) or _columns(text.name, text.read())

    def read(bad: Bad) -> Iterator[Record]:
        document = Document(text.name, text.read())
        for value in _objects(document):
            place = document.place(value.start)
            if problem := unusable(value.value, document.source[value.start : value.end]):
                bad(place, problem)
            else:
                yield Record(value.value, place)

    return Source(text.name, "json", columns, {}, text.notes(), read)


def _columns(name: str, source: str, cut: bool = False) -> tuple[str, ...]:
    """The keys of the first objects; if the document is cut off, of those before the cut."""
    columns: dict[str, None] = {}
    with contextlib.suppress(DataError) if cut else contextlib.nullcontext():
        for value in islice(_objects(Document(name, source)), LOOK):
            if isinstance(value.value, dict):
                columns.update(dict.fromkeys(value.value))
    return tuple(columns)


def _objects(document: Document) -> Iterator[Value]:
    """The rows of a document of either form."""
    start = document.skip(0)
    opening = document.at(start)
    if opening not in ("[", "{"):
        raise document.wrong(start, "not a JSON document of rows; expected an array of objects [{...}, ...]")
    count = 0
    for value in document.values(start):
        if opening == "{" and not isinstance(value.value, dict):
            raise document.wrong(
                value.start,
                f"{shown(value.key)} is {kind(value.value)}; expected an array of objects, an object of objects, "
                "or one object per line",
            )
        yield value
        count += 1
    if not count:
        raise document.wrong(start, "the document has no rows; expected an array of objects [{...}, ...]")
    document.ends()
