"""Files with something wrong in them, and what the message must say. One row per case.

`stage` says who notices: "read" the reader of the file, "task" what comes after it. `line` is the line the message
must name; without one, the file's name is enough.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LONG = 10 * 2**20


@dataclass(frozen=True)
class Malformed:
    name: str
    file: str
    content: bytes | Callable[[], bytes]
    task: str
    words: tuple[str, ...]
    line: int | None = None
    stage: str = "read"
    arguments: list[str] = field(default_factory=list)
    """Extra arguments of the command line."""

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.write_bytes(self.content if isinstance(self.content, bytes) else self.content())
        return path

    def option(self, name: str) -> str | None:
        """The value of --name among the arguments."""
        pairs = dict(zip(self.arguments[::2], self.arguments[1::2], strict=True))
        return pairs.get(f"--{name}")


GOOD = ["the film was great,pos", "a dull evening,neg", "what a cast,pos", "never again,neg", "I laughed a lot,pos"]
GOOD += [
    "too long by half,neg",
    "warm and clever,pos",
    "the plot has holes,neg",
    "see it twice,pos",
    "I left early,neg",
]


def table(rows: list[str], header: str = "text,label") -> bytes:
    return "\n".join([header, *rows, ""]).encode()


def with_row(row: str, at: int = 5) -> bytes:
    """Good rows and one other; row 5 is line 6, because of the header."""
    return table([*GOOD[: at - 1], row, *GOOD[at - 1 :]])


def tabs(rows: list[str], header: str = "text\tlabel") -> bytes:
    return table([row.replace(",", "\t") for row in rows], header)


def lines(*rows: str) -> bytes:
    return "\n".join([*rows, ""]).encode()


def objects(*more: str) -> bytes:
    rows = [dict(zip(("text", "label"), row.rsplit(",", 1), strict=True)) for row in GOOD]
    return lines(*(json.dumps(row) for row in rows[:4]), *more, *(json.dumps(row) for row in rows[4:]))


def squad(question: dict[str, object], context: object = "Bees live in hives. They make honey.") -> bytes:
    """A document with a good question and this one, which starts on line 19."""
    good = {"id": "a", "question": "Where do bees live?", "answers": [{"text": "hives", "answer_start": 13}]}
    paragraph = {"context": context, "qas": [good, question]}
    return json.dumps({"data": [{"title": "Bees", "paragraphs": [paragraph]}]}, indent=1).encode()


def answer(text: object, start: object) -> dict[str, object]:
    return {"id": "b", "question": "What do they make?", "answers": [{"text": text, "answer_start": start}]}


def parquet(rows: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = {"text": [f"row {i}" for i in range(rows)], "label": [["no", "yes"][i % 2] for i in range(rows)]}
    to = io.BytesIO()
    schema = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.string())])
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), to)
    return to.getvalue()


WORDS = ["Anna\tB-PER", "lives\tO", "in\tO", "Rome\tB-LOC", ""]
UD = [
    "1\tBees\tbee\tNOUN\tNNS\t_\t2\tnsubj\t_\t_",
    "2\tsing\tsing\tVERB\tVBP\t_\t0\troot\t_\tSpaceAfter=No",
    "",
]
SCORES = [f"text number {i},{i / 4}" for i in range(10)]


def case(name: str, file: str, content: bytes | Callable[[], bytes], words: str, line: int | None = None) -> Malformed:
    """A case of classification that the reader notices; words are separated by |."""
    return Malformed(name, file, content, "classification", tuple(words.split("|")), line)


def tagging(name: str, file: str, content: bytes, words: str, line: int | None = None) -> Malformed:
    return Malformed(name, file, content, "tagging", tuple(words.split("|")), line)


def qa(name: str, content: bytes, words: str, line: int | None = None) -> Malformed:
    return Malformed(name, "squad.json", content, "qa", tuple(words.split("|")), line)


def later(
    name: str, file: str, content: bytes, task: str, words: str, line: int | None = None, arguments: str = ""
) -> Malformed:
    """A case that the reader cannot notice."""
    return Malformed(name, file, content, task, tuple(words.split("|")), line, "task", arguments.split())


_WHOLE = [
    case("empty file", "empty.csv", b"", "empty"),
    case("blank lines only", "blank.tsv", b"\n\n  \n", "blank"),
    case("mark and nothing else", "mark.csv", b"\xef\xbb\xbf", "blank"),
    case("quotes and nothing else", "quotes.csv", b'""\n""\n', "no rows"),
    case("header only", "header.csv", b"text,label\n", "header|nothing below", 1),
    case("a sheet", "sheet.csv", b"PK\x03\x04\x14\x00\x06\x00", "zip file|CSV"),
    case("gzip cut off", "cut.csv.gz", gzip.compress(table(GOOD * 50), mtime=0)[:60], "gzip"),
    case("gzip damaged", "wrong.csv.gz", b"\x1f\x8b\x08\x00" + b"x" * 40, "gzip"),
    case("not a parquet file", "table.parquet", b"text,label\n", "parquet"),
    case("parquet cut off", "cut.parquet", lambda: parquet(20)[:-30], "parquet"),
    case("parquet without rows", "none.parquet", lambda: parquet(0), "no rows"),
]
_CHARACTERS = [
    case("latin-1", "latin.csv", with_row("caf\xe9,pos").decode().encode("latin-1"), "0xe9|UTF-8|--encoding cp1252", 6),
    case("cut inside a character", "half.csv", with_row("caf\xe9,pos")[:-1] + b"\xc3", "0xc3|UTF-8", 12),
    case("latin-1 lines", "latin.jsonl", objects('{"text": "caf\xe9"}').decode().encode("latin-1"), "0xe9|UTF-8", 5),
    case(
        "latin-1 tags",
        "latin.conll",
        "\n".join(WORDS * 3).replace("Rome", "\xc8ome").encode("latin-1"),
        "0xc8|UTF-8",
        4,
    ),
    Malformed(
        "no such encoding", "e.csv", table(GOOD), "classification", ("utf-80",), arguments=["--encoding", "utf-80"]
    ),
    Malformed(
        "byte unknown to cp1252",
        "w.csv",
        with_row("a\x81b,pos").decode().encode("latin-1"),
        "classification",
        ("0x81", "CP1252"),
        6,
        arguments=["--encoding", "cp1252"],
    ),
    Malformed(
        "UTF-16 asked for without a mark",
        "marked.csv",
        table(GOOD).decode().encode("utf-16-le"),
        "classification",
        ("mark", "utf-16-le"),
        arguments=["--encoding", "utf-16"],
    ),
    case("UTF-16 without a mark", "wide.csv", table(GOOD).decode().encode("utf-16-le"), "NUL|--encoding utf-16-le", 1),
    case("UTF-16 cut off", "wide.tsv", tabs(GOOD).decode().encode("utf-16")[:-1], "UTF-16|truncated", 11),
    case("a NUL byte", "nul.csv", with_row("a\0b,pos"), "NUL", 6),
    case("a line of 10 MB", "long.csv", lambda: with_row("x" * LONG + ",pos"), "8 MiB", 6),
    case("a line of 10 MB in JSON lines", "long.jsonl", lambda: objects('{"text": "' + "x" * LONG), "8 MiB", 5),
]
_TABLES = [
    case("too few cells", "few.csv", with_row("no label here"), "1 cell |2 are expected|text, label", 6),
    case("too many cells", "many.csv", with_row("one, two,pos"), "3 cells|2 are expected", 6),
    case("too many tabs", "many.tsv", tabs([*GOOD[:4], "one,two,pos", *GOOD[4:]]), "3 cells|2 are expected", 6),
    case("header too short", "short.csv", table(GOOD, "text"), "2 cells|1", 2),
    case("name twice", "twice.csv", table([f"{i},{row}" for i, row in enumerate(GOOD)], "text,text,label"), "twice", 1),
    case("name missing", "unnamed.csv", table([f"{i},{row}" for i, row in enumerate(GOOD)], "id,,label"), "cell 2", 1),
    case("quote never closed", "open.csv", with_row('"never closed,pos'), "quote|never closed", 6),
    case("quote closed rows later", "torn.csv", with_row('"torn,pos\nnext,neg\nlast",pos,x'), "3 cells|quote", 6),
    case("text after a quote", "after.csv", with_row('"a "quoted" word",pos'), "after a closing quote|twice", 6),
    case("text after a quote, later", "multi.csv", with_row('"two\nlines",pos\n"a"b,neg'), "after a closing quote", 8),
]
_JSON = [
    case("not JSON on a line", "bad.jsonl", objects('{"text": "a", "label": }'), "not JSON|column 24", 5),
    case("two objects on a line", "two.jsonl", objects('{"text": "a"} {"text": "b"}'), "not JSON", 5),
    case("a string as row", "string.jsonl", objects('"just text"'), "a string|object", 5),
    case("an array as row", "array.jsonl", objects('["a", "pos"]'), "an array|object", 5),
    case("half a character", "half.jsonl", objects('{"text": "\\ud83d", "label": "pos"}'), "surrogate", 5),
    case("no JSON at all", "prose.json", lines("Dear all,", "here are the rows."), "JSON|array of objects", 1),
    case("an empty array", "none.json", b"\n[]\n", "no rows", 2),
    case("a comma missing", "comma.json", lines("[", ' {"text": "a", "label": "b"}', ' {"text": "c"}', "]"), "','", 3),
    case("array cut off", "cut.json", lines("[", ' {"text": "a", "label": "b"},', ' {"text": "c", "la'), "not JSON", 3),
    case("numbers in an array", "numbers.json", lines("[", ' {"text": "a", "label": "b"},', " 3", "]"), "a number", 3),
    case(
        "an object of strings", "flat.json", lines("{", ' "text": "a",', ' "label": "b"', "}"), "a string|array of", 2
    ),
    case("text after the array", "rest.json", lines("[", ' {"text": "a", "label": "b"}', "]", "]"), "more text", 4),
    case("brackets 100,000 deep", "deep.jsonl", objects("[" * 100_000), "cannot be read", 5),
]
_WORDS = [
    tagging(
        "tag missing", "no-tag.conll", lines(*WORDS * 2, "Bob\tB-PER", "sleeps", "", *WORDS), "1 column|sleeps", 12
    ),
    tagging("tag empty", "empty-tag.conll", lines(*WORDS * 2, "Bob\tB-PER", "sleeps\t", ""), "empty tag", 12),
    tagging(
        "a word with a space", "space.conll", lines(*WORDS, "New York LOC", "").replace(b"\t", b" "), "3 columns|2", 6
    ),
    tagging(
        "tags in TSV missing", "tags.tsv", lines(*WORDS * 3, "Bob\tB-PER", "sleeps", "", *WORDS * 2), "1 column", 17
    ),
    tagging("comments only", "comments.conllu", lines("# sent_id = 1", "# text = Hi", ""), "no rows"),
    tagging("columns missing", "few.conllu", lines(*UD, "# x", "1\tHi\thi\tINTJ", ""), "4 columns|10", 5),
    tagging("spaces for tabs", "spaces.conllu", lines(*UD, *UD).replace(b"\t", b"  "), "1 column|tabs", 1),
    tagging("number of a token", "number.conllu", lines(*UD, UD[0], UD[1].replace("2", "7", 1), ""), "'7'|number 2", 5),
    tagging("no blank line", "joined.conllu", lines(*UD[:2], *UD), "'1'|number 3|blank line", 3),
]
_QUESTIONS = [
    qa("answer not there", squad(answer("wax", 30)), "'wax'|character 30|'hon'", 19),
    qa("answer before the text", squad(answer("honey", -1)), "character -1", 19),
    qa("answer beyond the text", squad(answer("honey", 900)), "character 900|nothing", 19),
    qa("offset as text", squad(answer("honey", "30")), "whole number|answer_start", 19),
    qa("answer without text", squad(answer(None, 30)), "no text", 19),
    qa("answer as text", squad({"id": "b", "question": "What?", "answers": "honey"}), "a string|array", 19),
    qa("question missing", squad({"id": "b", "answers": []}), "question", 19),
    qa("context missing", squad(answer("honey", 30), context=None), "context|qas", 6),
    qa("SQuAD cut off", squad(answer("honey", 30))[:-30], "not JSON"),
]
_LATER = [
    later(
        "no such label column", "reviews.csv", table(GOOD), "classification", "nolabel|label", None, "--label nolabel"
    ),
    later("no such text column", "reviews.csv", table(GOOD), "classification", "body|text", None, "--text body"),
    later("one class only", "one.csv", table([row for row in GOOD if "pos" in row]), "classification", "'pos'"),
    later("label empty", "unlabelled.csv", with_row("no opinion,"), "classification", "label", 6),
    later("text empty", "untold.csv", with_row(",pos"), "classification", "text", 6),
    later(
        "not a number",
        "scores.csv",
        table([*SCORES[:4], "text,high", *SCORES[4:]], "text,score"),
        "regression",
        "'high'",
        6,
    ),
    later(
        "not finite",
        "finite.csv",
        table([*SCORES[:4], "text,inf", *SCORES[4:]], "text,score"),
        "regression",
        "finite",
        6,
    ),
    later(
        "more words than tags",
        "uneven.jsonl",
        lines(*['{"tokens": ["a", "b"], "tags": ["O", "B-X"]}'] * 6, '{"tokens": ["a", "b"], "tags": ["O"]}'),
        "tagging",
        "2 words|1 tag",
        7,
    ),
    later(
        "no words",
        "wordless.jsonl",
        lines(*['{"tokens": ["a", "b"], "tags": ["O", "B-X"]}'] * 6, '{"tokens": [], "tags": []}'),
        "tagging",
        "words",
        7,
    ),
    later("one tag only", "same.conll", lines(*["a\tO", "b\tO", ""] * 6), "tagging", "'O'"),
    later("label missing", "gap.jsonl", objects('{"text": "no label"}'), "classification", "label", 5),
    later(
        "answer not in the context",
        "pairs.jsonl",
        lines(
            *['{"question": "Where?", "context": "In a hive.", "answer": "hive"}'] * 6,
            '{"question": "Who?", "context": "In a hive.", "answer": "bees"}',
        ),
        "qa",
        "'bees'",
        7,
    ),
]
MALFORMED: list[Malformed] = [*_WHOLE, *_CHARACTERS, *_TABLES, *_JSON, *_WORDS, *_QUESTIONS, *_LATER]
