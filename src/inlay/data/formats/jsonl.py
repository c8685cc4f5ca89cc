"""JSON lines: one object per line, streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from inlay.data.formats.text import Text
from inlay.data.record import Bad, Record, Source, shown
from inlay.errors import DataError

LOOK = 100
"""Objects looked at when a file is opened; the columns are all of their keys."""
_whole, _first_value = json.JSONDecoder().decode, json.JSONDecoder().raw_decode
"""The second is faster, but takes no spaces in front and ignores what follows."""
_ENDS = ("\n", "\r\n", "")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def open_jsonl(text: Text) -> Source:
    """One object per line; blank lines are skipped."""
    columns: dict[str, None] = {}
    problems: list[str] = []
    objects = 0
    for number, line in islice(_lines(text), LOOK):
        value, problem = parse(line)
        if problem:
            problems.append(f"{text.name}:{number}: {problem}")
        else:
            objects += 1
            columns.update(dict.fromkeys(value))
    if not objects:
        raise DataError(problems[0])

    def read(bad: Bad) -> Iterator[Record]:
        for number, line in _lines(text):
            value, problem = parse(line)
            if problem:
                bad(f"{text.name}:{number}", problem)
            else:
                yield Record(value, f"{text.name}:{number}")

    return Source(text.name, "jsonl", tuple(columns), {}, text.notes(), read)


def parse(line: str) -> tuple[dict[str, Any], str]:
    """The object on a line, or what is wrong with it."""
    value: Any
    try:
        value, end = _first_value(line) if line.startswith("{") else (None, 0)
        if line[end:] not in _ENDS:
            value = _whole(line)
    except json.JSONDecodeError as error:
        return {}, f"not JSON: {error.msg} (column {error.colno}); expected one object {{...}} per line"
    except (ValueError, RecursionError) as error:
        return {}, f"this JSON cannot be read: {error}"
    return (value, "") if not (problem := unusable(value, line)) else ({}, problem)


def unusable(value: object, source: str) -> str:
    """Why a JSON value cannot be a row; "" if it can."""
    if not isinstance(value, dict):
        return f"{kind(value)} {shown(value)} where an object {{...}} is expected"
    if not value:
        return "an object without keys; expected the columns of a row"
    if _SURROGATE.search(source):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "half a surrogate pair (\\ud8..) in a string, which is no character; write the character itself"
    return ""


def kind(value: object) -> str:
    """What JSON calls such a value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _lines(text: Text) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in text.lines() if line.strip())
