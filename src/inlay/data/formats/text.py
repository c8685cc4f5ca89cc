"""A text file as lines of any encoding, plain or gzipped, with the line number of whatever is wrong.

Lines end at \\n (whatever reads the cells drops a \\r before it), or at every \\r too where those are the
majority: old spreadsheets write bare \\r, while a stray \\r inside a cell of a \\n file is no line end.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from inlay.errors import DataError

HEAD = 256 * 1024
"""Bytes read when a file is opened, to see what it is."""
MAX_LINE = 8 * 2**20
"""Characters of the longest line, and of the longest row of a quoted table."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip file (an .xlsx sheet is one); unpack it, or export the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Office file; export the sheet as CSV",
    b"BZh": "a bzip2 file; unpack it, or use gzip",
    b"\xfd7zXZ": "an xz file; unpack it, or use gzip",
    b"%PDF": "a PDF; expected a table, JSON, CoNLL or parquet",
}


@dataclass(frozen=True)
class Text:
    """A text file whose beginning has been seen."""

    name: str
    path: Path
    encoding: str
    head: str
    whole: bool
    """Whether the head is all there is."""
    newline: str
    """As `open` takes it: \\n, or empty for every kind of line end."""

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of each line, its end included."""
        with self._opened(self.newline) as stream:
            for number in itertools.count(1):
                line = stream.readline(MAX_LINE + 1)
                if not line:
                    return
                if len(line) > MAX_LINE:
                    raise DataError(
                        f"{self.name}:{number}: a line of more than {MAX_LINE // 2**20} MiB; expected one row per line"
                    )
                if "\0" in line:
                    raise DataError(f"{self.name}:{number}: {_NUL}")
                yield number, line.removeprefix("\ufeff") if number == 1 else line

    def read(self) -> str:
        """The whole text, for documents that cannot be read by lines; line ends become \\n."""
        with self._opened(None) as stream:
            return stream.read().removeprefix("\ufeff")

    def head_lines(self) -> list[str]:
        """The lines of the head; the last is left out if the head cuts it off, unless it is the only one."""
        lines = list(io.StringIO(self.head, newline=self.newline))
        return lines if self.whole or len(lines) < 2 else lines[:-1]

    def notes(self) -> tuple[str, ...]:
        """What the user may want to know of the encoding."""
        plain = codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")
        return () if plain else (f"encoding {self.encoding}",)

    @contextlib.contextmanager
    def _opened(self, newline: str | None) -> Iterator[io.TextIOWrapper]:
        with _reading(self.name), io.TextIOWrapper(open_bytes(self.path), self.encoding, newline=newline) as stream:
            try:
                yield stream
            except UnicodeDecodeError:
                raise undecodable(self.name, self.path, self.encoding, self.newline) from None


_NUL = (
    "a NUL byte, so this is not text in the assumed encoding; "
    "pass --encoding utf-16-le or utf-16-be if it is UTF-16 without a mark"
)


def open_text(name: str, path: Path, encoding: str | None = None) -> Text:
    """Look at the beginning of a file and find its encoding: as given, by its mark, or UTF-8."""
    raw, whole = read_head(name, path)
    if not raw:
        raise DataError(f"{name}: the file is empty; expected rows")
    for magic, foreign in _FOREIGN.items():
        if raw.startswith(magic):
            raise DataError(f"{name}: this is {foreign}")
    codec = _choose_encoding(name, raw, encoding)
    decoded = codecs.getincrementaldecoder(codec)("replace").decode(raw, whole)
    newline = "" if decoded.count("\r") - decoded.count("\r\n") > decoded.count("\n") else "\n"
    try:
        head = codecs.getincrementaldecoder(codec)().decode(raw, whole).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise undecodable(name, path, codec, newline) from None
    if "\0" in head:
        lines = io.StringIO(head[: head.index("\0") + 1], newline=newline)
        raise DataError(f"{name}:{sum(1 for _ in lines)}: {_NUL}")
    if not head.strip():
        raise DataError(f"{name}: {'the file is' if whole else 'the beginning of the file is'} blank; expected rows")
    return Text(name, path, codec, head, whole, newline)


def read_head(name: str, path: Path) -> tuple[bytes, bool]:
    """The first bytes, unzipped, and whether they are all there is."""
    with _reading(name), open_bytes(path) as stream:
        raw = stream.read(HEAD + 1)
    return raw[:HEAD], len(raw) <= HEAD


def open_bytes(path: Path) -> BinaryIO:
    """Open for reading; a gzip file is known by its first bytes and not by its name."""
    with path.open("rb") as stream:
        zipped = stream.read(2) == _GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if zipped else path.open("rb")


def undecodable(name: str, path: Path, encoding: str, newline: str) -> DataError:
    """Find the first byte that is not of this encoding; the error names its line."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=newline == "")
    line, chunk = 1, b" "
    with open_bytes(path) as stream:
        while chunk:
            chunk = stream.read(HEAD)
            try:
                line += decoder.decode(chunk, not chunk).count("\n")
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(encoding, "ignore")
                ends = before.replace("\r\n", "\n").replace("\r", "\n") if newline == "" else before
                problem = f"byte 0x{error.object[error.start]:02x} is not {_display_name(encoding)}"
                problem += f" ({error.reason})" if _is_wide(encoding) else ""
                return DataError(f"{name}:{line + ends.count(chr(10))}: {problem}; {_advice(encoding, error.object)}")
    return DataError(f"{name}: not {_display_name(encoding)}; {_advice(encoding, b'')}")


def _advice(encoding: str, raw: bytes) -> str:
    """Another encoding to try: cp1252 where the bytes allow it, else latin-1, in which every byte is a character."""
    if _is_wide(encoding):
        return "copy the file again, or save it as UTF-8"
    try:
        raw.decode("cp1252")
        other = "cp1252"
    except UnicodeDecodeError:
        other = "latin-1"
    other = "utf-8" if encoding == other else other
    return f"pass --encoding {other} if it is that, or save the file as UTF-8"


def _is_wide(encoding: str) -> bool:
    return _display_name(encoding).startswith(("UTF-16", "UTF-32"))


def _display_name(encoding: str) -> str:
    return encoding.upper().removesuffix("-SIG")


def _choose_encoding(name: str, raw: bytes, passed: str | None) -> str:
    if passed is None:
        return next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), "utf-8")
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=passed)  # unlike a lookup, refuses codecs that are not of text
    except LookupError:
        raise DataError(f"{name}: unknown text encoding {passed!r}; expected one such as utf-8 or cp1252") from None
    codec = codecs.lookup(passed).name
    marks = [mark for mark, encoding in _MARKS if encoding == codec in ("utf-16", "utf-32")]
    if marks and not raw.startswith(tuple(marks)):
        raise DataError(f"{name}: {codec} without a mark at the beginning; pass --encoding {codec}-le or {codec}-be")
    return "utf-8-sig" if codec == "utf-8" else passed


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn an error of the system into a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: the gzip data is damaged or cut off ({error}); copy the file again") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None
