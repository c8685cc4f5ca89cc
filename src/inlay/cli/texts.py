"""What is to be answered: texts of the command line, lines of stdin, or the rows of a file, as each task reads them.

All of it is streamed, and a row is one place in the input whatever the number of adapters: a row that one of them
cannot use is left out for all.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inlay.errors import DataError

if TYPE_CHECKING:
    from inlay.data.columns import Columns
    from inlay.data.record import Bad, Record
    from inlay.data.source import Source
    from inlay.tasks import Example, Task

_SAMPLE = 200
_STDIN = "stdin"
_PLAIN = {"text": "text", "tokens": "text", "question": "text"}
"""The one column of plain lines, whatever a task calls it."""


@dataclass(frozen=True)
class Texts:
    """Rows to be answered."""

    paired: bool
    """Whether some adapter answers for a pair of texts."""
    notes: tuple[str, ...]
    """Lines worth telling the user."""
    rows: Callable[[Bad], Iterator[Mapping[str, Example] | None]]
    """Stream the rows: adapter -> what it is asked; None where a row cannot be used, of which `bad` has heard."""


def of_lines(
    lines: Iterable[tuple[str, str]],
    pair: str | None,
    tasks: Mapping[str, Task],
    about: Mapping[str, Mapping[str, Any]],
) -> Texts:
    """Texts as they are, (place, text), all with the same second text if there is one, for adapters that take one."""
    from inlay.tasks import Example

    asking = next((name for name, task in tasks.items() if task.kind == "qa"), None)
    if asking is not None and pair is None:
        raise DataError(f"{asking} answers questions about a text: pass that text with --pair")
    trained = {name: about[name].get("columns") or {"pair": ""} for name in tasks}  # of others nothing is known
    takes_pair = {name: task.kind not in ("tagging", "mlm") and "pair" in trained[name] for name, task in tasks.items()}
    if pair is not None and not any(takes_pair.values()):
        raise DataError(f"--pair {_cut(pair)!r}: {', '.join(tasks)} answers for one text, not for a pair")

    def rows(bad: Bad) -> Iterator[Mapping[str, Example] | None]:
        found = False
        for place, text in lines:
            found = True
            yield {name: Example(text, pair if takes_pair[name] else None, place=place) for name in tasks}
        if not found:
            raise DataError(f"{_STDIN}: no texts; expected one per line")

    return Texts(any(task.kind not in ("tagging", "qa") for task in tasks.values()) and pair is not None, (), rows)


def of_arguments(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Texts of the command line."""
    for number, text in enumerate(texts, 1):
        place = f"text {number}"
        if not text.strip():
            raise DataError(f"{place} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{place} is not valid UTF-8") from None
        yield place, text


def of_stdin(encoding: str | None) -> Iterator[tuple[str, str]]:
    """The lines of stdin that are not blank."""
    name = encoding or "utf-8"
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)  # unlike a lookup, refuses codecs that are not of text
    except LookupError:
        raise DataError(f"there is no text encoding {name!r}; expected one such as utf-8 or cp1252") from None
    if codecs.lookup(name).name.startswith(("utf-16", "utf-32")):
        raise DataError(f"{_STDIN}: {name} cannot be read by lines; write it to a file and pass --file")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        place = f"{_STDIN}:{number}"
        try:
            line = raw.decode(name).rstrip("\r\n")
        except UnicodeDecodeError as error:
            problem = f"byte 0x{raw[error.start]:02x} is not {name.upper()}"
            raise DataError(f"{place}: {problem}; pass --encoding cp1252 if it is that") from None
        line = line.removeprefix("\ufeff") if number == 1 else line
        if line.strip():
            yield place, line


def as_trained(about: Mapping[str, Any], names: Collection[str], given: Mapping[str, str]) -> dict[str, str]:
    """What is given, and else the columns that the adapter was trained on, if this file has them."""
    from inlay.data.guess import is_unnamed
    from inlay.data.record import several

    def there(name: str) -> bool:
        return all(part in names for part in several(name, names))

    trained = about.get("columns") or {}
    if is_unnamed(trained.get("pair", "")):  # a number, which in another file may be that of its labels: look again
        trained = {role: name for role, name in trained.items() if role == "label"}
    if any(not there(name) for role, name in trained.items() if role != "label"):
        return dict(given)  # another layout
    roles = [role for role in ("text", "pair", "label") if role != "pair" or "text" not in given]  # not its pair
    named = {role: trained[role] for role in roles if role in trained and there(trained[role])}
    return {role: name for role, name in named.items() if name not in given.values()} | dict(given)


def of_file(
    path: str,
    format: str | None,
    encoding: str | None,
    given: Mapping[str, str],
    tasks: Mapping[str, Task],
    skip: bool,
    about: Mapping[str, Mapping[str, Any]],
) -> Texts:
    """The rows of a file, or of stdin for `-`.

    Args:
        given: the columns that the user named: text, pair, label.
        skip: bad rows among the first are no reason to stop.
        about: how each adapter came to be.
    """
    from inlay.data.record import Skipped, stop_or_skip
    from inlay.data.source import open_source

    if path == "-":
        source, sample = _stdin_source(format, encoding)
    else:
        source = open_source(path, format=format, encoding=encoding)
        sample = list(itertools.islice(source.records(Skipped() if skip else stop_or_skip), _SAMPLE))
    chosen: dict[str, tuple[Columns, str]] = {}
    for name, task in tasks.items():
        known = as_trained(about[name], source.columns, _used(given, tasks, task))
        chosen[name] = _columns(task, source, sample, known, about[name].get("columns"))

    def rows(bad: Bad) -> Iterator[Mapping[str, Example] | None]:
        for record in source.records(bad):
            yield _row(record, tasks, chosen, bad)

    notes = dict.fromkeys([*source.notes, *(note for _, note in chosen.values() if note)])
    return Texts(any(columns.pair for columns, _ in chosen.values()), tuple(notes), rows)


def _row(
    record: Record, tasks: Mapping[str, Task], chosen: Mapping[str, tuple[Columns, str]], bad: Bad
) -> Mapping[str, Example] | None:
    from inlay.tasks import Unusable

    try:
        return {name: task.read(record, chosen[name][0]) for name, task in tasks.items()}
    except Unusable as problem:
        bad(record.place, str(problem))
        return None


def _used(given: Mapping[str, str], tasks: Mapping[str, Task], task: Task) -> Mapping[str, str]:
    """What is given, less what only other tasks have: a pair is for those that take one."""
    from inlay.data.columns import FIELDS

    def has(one: Task, role: str) -> bool:
        return f"--{role}" in FIELDS.get(one.name, {}).values()

    return {
        role: name
        for role, name in given.items()
        if has(task, role) or not any(has(one, role) for one in tasks.values())
    }


def _columns(
    task: Task,
    source: Source,
    sample: Sequence[Record],
    given: Mapping[str, str],
    trained: Mapping[str, str] | None,
) -> tuple[Columns, str]:
    """The columns without those that hold what is right, and a line on what was guessed."""
    from inlay.data.columns import Columns, choose, in_pairs

    def ask(name: str) -> tuple[Columns, str]:
        asked = (source.columns, sample, given, source.hints, source.name)
        _, columns, note = choose(name, *asked, labelled=False, pairs=in_pairs(trained))
        return columns, note

    try:
        columns, note = ask(task.kind)
    except DataError:
        if task.kind != "tagging":
            raise
        texts, note = ask("classification")  # a text will do where there are no words
        columns = Columns(tokens=texts.text)
    return dataclasses.replace(columns, label="", tags="", answers=""), note


def _stdin_source(format: str | None, encoding: str | None) -> tuple[Source, list[Record]]:
    """Stdin as JSON lines if the first begins with {, else as plain lines; it can be read only once."""
    from inlay.data.formats.jsonl import parse
    from inlay.data.record import Record
    from inlay.data.source import Source

    if format not in (None, "jsonl"):
        raise DataError(f"{_STDIN}: {format} cannot be read from a pipe; write it to a file, or pass JSON lines")
    lines = of_stdin(encoding)
    head = list(itertools.islice(lines, _SAMPLE))
    if not head:
        raise DataError(f"{_STDIN}: no rows; expected one per line")
    as_json = format == "jsonl" or head[0][1].lstrip().startswith("{")

    def record(place: str, line: str) -> tuple[Record, str]:
        fields, problem = parse(line) if as_json else ({"text": line}, "")
        return Record(fields, place), problem

    def read(bad: Bad) -> Iterator[Record]:
        for place, line in itertools.chain(head, lines):
            made, problem = record(place, line)
            if problem:
                bad(place, problem)
            else:
                yield made

    seen = [record(*one) for one in head]
    sample = [one for one, problem in seen if not problem]
    if not sample:
        raise DataError(f"{seen[0][0].place}: {seen[0][1]}")
    columns = tuple(dict.fromkeys(column for one in sample for column in one.fields))
    hints: Mapping[str, str] = {} if as_json else _PLAIN
    return Source(_STDIN, "jsonl" if as_json else "text", columns, hints, (), read), sample


def _cut(text: str, room: int = 40) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."
