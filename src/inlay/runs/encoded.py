"""Rows of token ids, made once: runs with the same data share them, and those of large data are kept on disk.

What rows depend on goes into a key: what encoding reads of the examples, the task's options and code, the labels, the
limit, the tokenizer. Runs in one process that agree in it have the very same rows, as long as one of them lives. Runs
that split one file in different ways share the ids of the whole file. A task from outside this package is encoded for
every run: a change of its code would go unnoticed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from inlay.runs import packed, store
from inlay.tasks import Example, Row, Task
from inlay.version import __version__

LARGE = 2000
"""Examples from which on rows are kept on disk."""
_FORMAT = 1
"""The version of the arrays in a file."""
_KIND = "rows"
_CHUNK = 1000


class Rows(list[Row]):
    """Rows that runs share; a list, so that it can be referred to weakly."""

    pool: Rows | None = None
    """The rows of the whole file, kept alive for runs that split it another way."""
    lengths: list[int] | None = None
    """The examples' lengths without a limit, once they have been computed."""


_shared: WeakValueDictionary[str, Rows] = WeakValueDictionary()


@dataclass(frozen=True)
class Encoder:
    """Everything that rows depend on but the examples."""

    task: Task
    tokenizer: Any
    labels: Sequence[str]
    limit: int
    _keys: dict[int, tuple[Sequence[Example], str]] = field(default_factory=dict, repr=False, compare=False)
    """id of the examples -> the examples, which this keeps alive, and their key."""

    def rows(self, examples: Sequence[Example], pool: Sequence[Example] | None = None) -> Rows:
        """The rows of these examples. The list must not be changed: other runs have it too.

        Args:
            pool: what the examples were taken from. All of it is encoded, once for all runs that take part of it.
        """
        key = self._key(examples if pool is None else pool)
        if pool is None or not key:
            return self._all_rows(key, examples)
        number_of = {id(e): i for i, e in enumerate(pool)}
        chosen = array("q", (number_of[id(e)] for e in examples))
        key_of_part = f"{key}-{hashlib.blake2b(chosen, digest_size=16).hexdigest()}"
        rows = _shared.get(key_of_part)
        if rows is None:
            rows = _shared[key_of_part] = _take(self._all_rows(key, pool), chosen, len(pool))
        return rows

    def lengths(self, examples: Sequence[Example], pool: Sequence[Example] | None = None) -> list[int]:
        """How many tokens each example has if nothing is cut."""
        whole = examples if pool is None else pool
        key = self._key(whole)
        rows = self._all_rows(key, whole) if key else Rows()
        if rows.lengths is None:
            stored = _read(f"{key}-lengths", whole) if key else None
            rows.lengths = stored["lengths"].tolist() if stored is not None else self._lengths(whole, rows)
            if key and stored is None:
                _write(f"{key}-lengths", whole, {"lengths": array("q", rows.lengths)})
        if pool is None:
            return rows.lengths
        length_of = dict(zip(map(id, pool), rows.lengths, strict=True))
        return [length_of[id(e)] for e in examples]

    def _all_rows(self, key: str, examples: Sequence[Example]) -> Rows:
        rows = _shared.get(key)
        if rows is not None:
            return rows
        stored = _read(key, examples) if key else None
        if stored is not None:
            rows = Rows(packed.unpack(stored))
        else:
            encoded = self.task.encode(self.tokenizer, examples, self.labels, self.limit)
            arrays = packed.pack(encoded)
            rows = Rows(encoded if arrays is None else packed.unpack(arrays))
            if key and arrays is not None:
                _write(key, examples, arrays)
        if key:
            _shared[key] = rows
        return rows

    def _key(self, examples: Sequence[Example]) -> str:
        """Empty if rows cannot be shared."""
        if id(examples) not in self._keys:
            self._keys[id(examples)] = examples, self._new_key(examples)
        return self._keys[id(examples)][1]

    def _new_key(self, examples: Sequence[Example]) -> str:
        kind, tokenizer = type(self.task), fingerprint(self.tokenizer)
        if not kind.__module__.startswith(f"{Task.__module__}.") or not tokenizer:
            return ""
        facts = (_FORMAT, _code(), kind.__module__, kind.__qualname__, self.task.encode_key, tuple(self.labels))
        digest = hashlib.blake2b(repr((*facts, self.limit, tokenizer)).encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(content(examples).encode())
        return digest.hexdigest()

    def _lengths(self, examples: Sequence[Example], rows: Sequence[Row]) -> list[int]:
        """Mostly known from the rows; the tokenizer counts the others."""
        lengths = [0] * len(examples)
        for row in rows if self.task.has_whole_rows else ():
            is_whole = lengths[row.example] == 0 and len(row.ids) < self.limit
            lengths[row.example] = len(row.ids) if is_whole else -1  # a second row: the text is longer than one
        rest = [i for i, n in enumerate(lengths) if n <= 0]
        for begin in range(0, len(rest), _CHUNK):
            chunk = rest[begin : begin + _CHUNK]
            texts = [examples[i].shown() for i in chunk]
            pairs = [examples[i].pair for i in chunk] if examples[0].pair is not None else None
            ids = self.tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]
            for i, tokens in zip(chunk, ids, strict=True):
                lengths[i] = len(tokens)
        return lengths


def content(examples: Sequence[Example]) -> str:
    """A hash of what encoding reads of examples."""
    digest = hashlib.blake2b(digest_size=16)
    for e in examples:
        digest.update(repr((e.text, e.pair, e.words, e.target)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def fingerprint(tokenizer: Any) -> str:
    """A hash of all that a fast tokenizer's answers depend on; empty for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return ""
    # what stands before the tokens is the truncation and padding of the latest call
    _, _, text = backend.to_str().partition('"added_tokens"')
    names = ("truncation_side", "padding_side", "model_input_names", "all_special_ids", "mask_token_id")
    facts = [type(tokenizer).__qualname__, *(repr(getattr(tokenizer, name, None)) for name in names)]
    return hashlib.blake2b("\n".join([*facts, text]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@functools.cache
def _code() -> str:
    """A hash of the code that makes rows."""
    digest = hashlib.blake2b(digest_size=16)
    for package in ("transformers", "tokenizers"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    digest.update(f"inlay {__version__}\n".encode())
    for file in sorted(Path(inspect.getfile(Task)).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _take(pool: Rows, chosen: Sequence[int], count: int) -> Rows:
    """The rows of chosen examples, numbered anew."""
    rows_of: list[list[Row]] = [[] for _ in range(count)]
    for row in pool:
        rows_of[row.example].append(row)
    taken = Rows(Row(row.ids, row.types, row.target, i, row.aux) for i, e in enumerate(chosen) for row in rows_of[e])
    taken.pool = pool
    return taken


def _read(key: str, examples: Sequence[Example]) -> store.Arrays | None:
    return store.read(_KIND, key) if len(examples) >= LARGE else None


def _write(key: str, examples: Sequence[Example], arrays: dict[str, array[Any]]) -> None:
    if len(examples) >= LARGE:
        store.write(_KIND, key, arrays)
