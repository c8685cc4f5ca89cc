"""What to answer: texts of the command line, lines of stdin, or the rows of a file, as each task reads them.

All of it is streamed, and a row is one place in the input whatever the number of adapters: one that an adapter
cannot use is a problem of that row, not the end of the command. Columns are chosen before `rows` imports torch.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from inlay.data.columns import Columns, choose, in_pairs, parts
from inlay.data.formats.jsonl import parse
from inlay.data.guess import is_unnamed
from inlay.data.record import Bad, Record, Skipped, several
from inlay.data.source import Source, open_source
from inlay.errors import DataError, suggest
from inlay.library.card_text import shortened

if TYPE_CHECKING:
    from inlay.cli.named_adapters import NamedAdapter
    from inlay.tasks import Example, Task

_SAMPLE = 200
_STDIN = "stdin"
_PLAIN = {"text": "text", "tokens": "text", "question": "text"}
"""The only column of plain lines, under every name that a task has for it."""


class InputRow(NamedTuple):
    """One row of the input; a tuple, which is made faster than a dataclass."""

    place: str
    examples: Mapping[str, Example]
    """Adapter -> the row as its task reads it."""
    problems: Mapping[str, str]
    """Adapter -> why it cannot use the row."""
    text: str | None
    """What an error can show of the row."""
    fields: Mapping[str, Any]
    """The user's columns, some of which are copied to the output."""


@dataclass(frozen=True)
class InputRows:
    """Rows to be answered."""

    paired: bool
    """Whether some adapter answers for a pair of texts."""
    notes: tuple[str, ...]
    """Lines worth telling the user."""
    rows: Callable[[Mapping[str, Task]], Iterator[InputRow]]
    """Stream the rows, as the tasks of the adapters read them."""
    kept: Sequence[str] = ()
    """The columns that are copied to the output, by their names in the input."""
    shown: Collection[str] = ()
    """Columns that an answer shows anyway, under the same name: a text that is called `text`."""
    waits: bool = False
    """Whether reading may wait: for a terminal, or a pipe."""


Line = tuple[str, str | None, str]
"""Place, text, and what is wrong with it if something is."""


def of_lines(lines: Iterable[Line], pair: str | None, adapters: Mapping[str, NamedAdapter]) -> InputRows:
    """Texts as they are, all with the same second text if there is one, for adapters that take one."""
    kinds = {name: adapter.kind for name, adapter in adapters.items()}
    questioner = next((name for name, kind in kinds.items() if kind == "qa"), None)
    if questioner is not None and pair is None:
        raise DataError(f"{questioner} answers questions about a text: pass that text with --pair")
    # one that names no columns may take a pair
    trained = {name: adapter.about.get("columns") or {"pair": ""} for name, adapter in adapters.items()}
    takes_pair = {name: kind not in ("tagging", "mlm") and "pair" in trained[name] for name, kind in kinds.items()}
    if pair is not None and not any(takes_pair.values()):
        raise DataError(f"--pair {shortened(pair, 40)!r}: {', '.join(kinds)} answers for one text, not for a pair")

    def rows(tasks: Mapping[str, Task]) -> Iterator[InputRow]:
        from inlay.tasks import Example

        for place, text, problem in lines:
            if problem or text is None:
                yield InputRow(place, {}, dict.fromkeys(kinds, problem), text, {})
            else:
                examples = {name: Example(text, pair if takes_pair[name] else None, place=place) for name in kinds}
                yield InputRow(place, examples, {}, text, {})

    paired = any(kind not in ("tagging", "qa") for kind in kinds.values()) and pair is not None
    return InputRows(paired, (), rows, waits=True)


def of_arguments(texts: Sequence[str]) -> list[Line]:
    """Texts of the command line; a bad one is refused."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise DataError(f"text {number} is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"text {number} is not valid UTF-8") from None
    return [(f"text {number}", text, "") for number, text in enumerate(texts, 1)]


def of_stdin(encoding: str | None) -> Iterator[Line]:
    """The lines of stdin; blank ones, and those that are not text, have a problem."""
    name = encoding or "utf-8"
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)  # unlike a lookup, refuses codecs that are not of text
    except LookupError:
        raise DataError(f"unknown text encoding {name!r}; expected one such as utf-8 or cp1252") from None
    if codecs.lookup(name).name.startswith(("utf-16", "utf-32")):
        raise DataError(f"{_STDIN}: {name} cannot be read by lines; write it to a file and pass --file")
    first = next(sys.stdin.buffer, None)  # an empty stdin is noticed before anything is loaded
    if first is None:
        raise DataError(f"{_STDIN}: no texts; expected one per line")
    return (_line(number, raw, name) for number, raw in enumerate(itertools.chain([first], sys.stdin.buffer), 1))


def _line(number: int, raw: bytes, encoding: str) -> Line:
    place = f"{_STDIN}:{number}"
    try:
        line = raw.decode(encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{raw[error.start]:02x} is not {encoding.upper()}"
        return place, None, f"{problem}; pass --encoding cp1252 if it is that"
    line = line.removeprefix("\ufeff") if number == 1 else line
    return place, line, "" if line.strip() else "the line is empty"


def as_trained(about: Mapping[str, Any], names: Collection[str], named: Mapping[str, str]) -> dict[str, str]:
    """The columns that the user named, else those that the adapter was trained on, if this file has them."""

    def exists(name: str) -> bool:
        return all(part in names for part in several(name, names))

    trained = about.get("columns") or {}
    if is_unnamed(trained.get("pair", "")):  # a number, perhaps that of the labels in this file
        trained = {role: name for role, name in trained.items() if role == "label"}
    if any(not exists(name) for role, name in trained.items() if role != "label"):
        return dict(named)  # another layout
    roles = [role for role in ("text", "pair", "label") if role != "pair" or "text" not in named]
    known = {role: trained[role] for role in roles if role in trained and exists(trained[role])}
    return {role: name for role, name in known.items() if name not in named.values()} | dict(named)


def of_file(
    path: str,
    format: str | None,
    encoding: str | None,
    named: Mapping[str, str],
    adapters: Mapping[str, NamedAdapter],
    keep: Sequence[str] | None = None,
) -> InputRows:
    """The rows of a file, or of stdin for `-`.

    Args:
        named: the columns that the user named: text, pair, label.
        keep: the columns to keep; None for all.
    """
    if path == "-":
        source, sample = _stdin_source(format, encoding)
    else:
        source, bad = open_source(path, format=format, encoding=encoding), Skipped()
        sample = list(itertools.islice(source.records(bad), _SAMPLE))
        if not sample:
            raise DataError(bad.first[0])
    unknown = next((name for name in keep or () if name not in source.columns), None)
    if unknown is not None:
        raise DataError(f"{path}: no column {unknown!r} (--keep). {suggest(unknown, source.columns)}")
    chosen: dict[str, tuple[Columns, str]] = {}
    for name, adapter in adapters.items():
        known = as_trained(adapter.about, source.columns, _used(named, adapter, adapters.values()))
        chosen[name] = _columns(adapter.kind, source, sample, known, adapter.about.get("columns"))
    kept = source.columns if keep is None else tuple(keep)

    def rows(tasks: Mapping[str, Task]) -> Iterator[InputRow]:
        from inlay.tasks import Unusable

        unread: list[tuple[str, str]] = []
        columns = {name: columns for name, (columns, _) in chosen.items()}
        for record in source.records(lambda place, problem: unread.append((place, problem))):
            if unread:
                yield from _unread(unread, adapters)
            yield _row(record, tasks, columns, Unusable)
        yield from _unread(unread, adapters)

    notes = dict.fromkeys([*source.notes, *(note for _, note in chosen.values() if note)])
    paired = any(columns.pair for columns, _ in chosen.values())
    return InputRows(paired, tuple(notes), rows, kept, _shown([columns for columns, _ in chosen.values()]), path == "-")


def _unread(unread: list[tuple[str, str]], names: Iterable[str]) -> Iterator[InputRow]:
    """The rows that the reader could not use, since the last that it could."""
    while unread:
        place, problem = unread.pop(0)
        yield InputRow(place, {}, dict.fromkeys(names, problem), None, {})


def _row(
    record: Record,
    tasks: Mapping[str, Task],
    columns: Mapping[str, Columns],
    unusable: type[Exception],
) -> InputRow:
    """A row as every task reads it; a task that cannot use it raises `unusable`."""
    examples: dict[str, Example] = {}
    problems: dict[str, str] = {}
    for name, task in tasks.items():
        try:
            examples[name] = task.read(record, columns[name])
        except unusable as problem:
            problems[name] = str(problem)
    shown, fields = None, record.fields
    if problems:
        first = next(iter(columns.values()))
        text = fields.get(first.text or first.tokens or first.question)
        shown = text if isinstance(text, str) else None
    return InputRow(record.place, examples, problems, shown, fields)


def _shown(columns_of_adapters: Sequence[Columns]) -> set[str]:
    """The columns that every answer shows under their own names."""
    shown = {"text": ("text", "tokens", "question"), "pair": ("pair",), "context": ("context",)}
    return {
        name
        for name, roles in shown.items()
        if all(name in [getattr(columns, role) for role in roles] for columns in columns_of_adapters)
    }


def _used(named: Mapping[str, str], adapter: NamedAdapter, adapters: Collection[NamedAdapter]) -> Mapping[str, str]:
    """The named columns that this adapter, or none at all, takes: a pair is for adapters trained on pairs."""

    def takes(candidate: NamedAdapter, role: str) -> bool:
        is_single = role == "pair" and in_pairs(candidate.about.get("columns")) is False
        return f"--{role}" in parts(candidate.kind).values() and not is_single

    return {
        role: name
        for role, name in named.items()
        if takes(adapter, role) or not any(takes(other, role) for other in adapters)
    }


def _columns(
    kind: str,
    source: Source,
    sample: Sequence[Record],
    named: Mapping[str, str],
    trained: Mapping[str, str] | None,
) -> tuple[Columns, str]:
    """The columns without labels, tags and answers, and a line on what was guessed."""

    def ask(name: str) -> tuple[Columns, str]:
        arguments = (source.columns, sample, named, source.hints, source.name)
        _, columns, note = choose(name, *arguments, labelled=False, pairs=in_pairs(trained))
        return columns, note

    try:
        columns, note = ask(kind)
    except DataError:
        if kind != "tagging":
            raise
        texts, note = ask("classification")  # without words, a text will do
        columns = Columns(tokens=texts.text)
    return dataclasses.replace(columns, label="", tags="", answers=""), note


def _stdin_source(format: str | None, encoding: str | None) -> tuple[Source, list[Record]]:
    """Stdin as JSON lines if the first begins with {, else as plain lines; it can be read only once."""
    if format not in (None, "jsonl"):
        raise DataError(f"{_STDIN}: {format} cannot be read from a pipe; write it to a file, or pass JSON lines")
    lines = of_stdin(encoding)
    head = list(itertools.islice(lines, _SAMPLE))
    first = next((text for _, text, problem in head if text and not problem), "")
    as_json = format == "jsonl" or first.lstrip().startswith("{")

    def record(place: str, line: str | None, problem: str) -> tuple[Record, str]:
        if problem or line is None:
            return Record({}, place), problem
        fields, problem = parse(line) if as_json else ({"text": line}, "")
        return Record(fields, place), problem

    def read(bad: Bad) -> Iterator[Record]:
        for line in itertools.chain(head, lines):
            row, problem = record(*line)
            if problem:
                bad(row.place, problem)
            else:
                yield row

    seen = [record(*line) for line in head]
    sample = [row for row, problem in seen if not problem]
    if not sample:
        raise DataError(f"{seen[0][0].place}: {seen[0][1]}")
    columns = tuple(dict.fromkeys(column for row in sample for column in row.fields))
    hints: Mapping[str, str] = {} if as_json else _PLAIN
    return Source(_STDIN, "jsonl" if as_json else "text", columns, hints, (), read), sample
