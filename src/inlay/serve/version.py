"""One served version of a task, an ask for it on its way, and the tokenizers that encode it.

A version takes all that encoding and decoding need from its card, so an ask is encoded in the caller's thread while the
adapter may still be on disk. An ask stays with the version it was encoded for: the next may have other labels.
"""

from __future__ import annotations

import copy
import os
import queue
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from inlay.bank.delta import SlotMethod, parse
from inlay.base.load import load_tokenizer
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.ensembles import asked_as
from inlay.engine.host import Host
from inlay.engine.predict import row_limit
from inlay.engine.translate import Translator
from inlay.errors import AdapterError, BaseError, InlayError
from inlay.library.cards import Entry, method_of, task_of
from inlay.serve.engine_types import Ask, Pending
from inlay.tasks import Example, Row
from inlay.tasks import parse as parse_task


@dataclass(eq=False)
class Version:
    """A served name and the version it stands for."""

    name: str
    entry: Entry
    translator: Translator
    limit: int
    """The longest row, in tokens."""
    alone: bool
    """Whether its rows run in a pass of their own."""
    open: int = 0
    """Asks that are not answered yet."""
    retired: bool = False
    """Whether another version has taken its place, or none."""

    @property
    def ref(self) -> str:
        """`sms@3`."""
        return self.entry.ref

    @property
    def refs(self) -> tuple[str, ...]:
        """The names in the host of the adapters that answer; versions that are served twice share them."""
        return tuple([member.name for member in self.translator.members]) or (self.entry.ref,)

    def own_error(self, error: InlayError) -> InlayError:
        """The error of an adapter as an error of this version, which needs it."""
        return type(error)(f"{self.ref}: its member {error}") if self.entry.members else copy.copy(error)

    @property
    def parts(self) -> tuple[Entry, ...]:
        """The adapters that answer: itself, or its members."""
        return self.entry.members or (self.entry,)

    @classmethod
    def of(cls, host: Host, name: str, entry: Entry) -> Version:
        """A version as its card describes it, if this host can serve it."""
        card = entry.card
        task = parse_task(task_of(card)) if card["task"] else None
        if task is None or card["head"] is None or not card["labels"] or not task.gives_answers:
            raise AdapterError(f"{entry.ref} cannot be served: it has no head that gives answers")
        try:
            host.refuse_other_base(card["base"], card.get("base_name"))
        except AdapterError as error:
            raise AdapterError(f"{entry.ref} cannot be served: {error}") from None
        alone = any(_runs_alone(host, adapter) for adapter in entry.members or (entry,))
        columns = columns if isinstance(columns := card.get("columns"), Mapping) else {}
        translator = Translator(name, task, tuple(card["labels"]), columns)
        if entry.members:
            slots, specs = [member.ref for member in entry.members], [task_of(m.card) for m in entry.members]
            translator = asked_as(name, task.spec, card["labels"], columns, slots, specs, card["weights"])
        return cls(name, entry, translator, row_limit(host, task.max_length), alone)


def _runs_alone(host: Host, entry: Entry) -> bool:
    """Whether an adapter needs a pass of its own; an error if this host cannot have it."""
    method, sites = parse(method_of(entry.card)), host.base.sites
    if (form := host.base.form) and method.needs_weights(sites):
        raise BaseError(f"{entry.ref} ({method.name}) works with the base's own weights; serve it without {form}")
    if not isinstance(method, SlotMethod):
        return True
    return any(part.site.kind in sites.single_slot for part in method.parts(sites))


@dataclass(eq=False)
class Item:
    """An ask that was accepted."""

    ask: Ask
    version: Version
    translator: Translator
    example: Example
    rows: list[Row]
    options: AnswerOptions
    pending: Pending = field(default_factory=Pending)
    accepted: float = field(default_factory=time.monotonic)
    outputs: list[Sequence[Tensor]] = field(default_factory=list)
    """For every row that has run: the outputs of all adapters that answer."""
    left: int = 0
    """Pieces that have not run."""
    pieces: list[Piece] = field(default_factory=list)
    begun: bool | None = None
    """None until `begin` is called; False if it was cancelled before."""

    def begin(self) -> bool:
        """Whether it can still run, or fail; after this it cannot be cancelled. Only for the engine's thread."""
        if self.begun is None:
            self.begun = self.pending.set_running_or_notify_cancel()
        return self.begun

    def cut(self, tokens: int) -> None:
        """Put its rows into pieces of at most this many tokens, or one row."""
        pieces, adapters = self.pieces, len(self.version.refs)
        for i, row in enumerate(self.rows):
            if not pieces or pieces[-1].tokens + adapters * len(row.ids) > tokens:
                pieces.append(Piece(self, i, i, 0))
            pieces[-1].end += 1
            pieces[-1].tokens += adapters * len(row.ids)
        self.left, self.outputs = len(pieces), [()] * len(self.rows)


@dataclass(eq=False)
class Piece:
    """Rows of one ask that run in one batch: all of them, unless the text is very long."""

    item: Item
    start: int
    end: int
    tokens: int

    @property
    def rows(self) -> list[Row]:
        """The rows of the item that are in this piece."""
        return self.item.rows[self.start : self.end]


class Tokenizers:
    """A few copies of a base's tokenizer: it keeps its truncation as a state, so each thread needs one of its own."""

    def __init__(self, host: Host):
        self._first = load_tokenizer(host.base)
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()
        for _ in range(max(1, min(3, os.cpu_count() or 1))):
            self._idle.put(None)
        self._idle.put(copy.deepcopy(self._first))

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """A tokenizer for this thread; copies are made when they are first needed."""
        tokenizer = self._idle.get()
        try:
            tokenizer = tokenizer or copy.deepcopy(self._first)
            yield tokenizer
        finally:
            self._idle.put(tokenizer)


def encode(version: Version, ask: Ask, tokenizers: Tokenizers) -> Item:
    """An ask in rows of its version; an error says what is wrong with it."""
    options = AnswerOptions(ask.top_k, ask.threshold, ask.raw)
    if not ask.has_others:
        options.check({version.name: version.translator.task.kind})
    translator = version.translator if ask.long == "cut" else version.translator.in_windows()
    example = translator.example(ask.given)
    key = _rows_key(translator, version.limit)
    if (rows := ask.shared.get(key)) is None:
        rows = ask.shared[key] = _rows(version, translator, example, tokenizers)
    if ask.long == "refuse" and len(rows) > 1:
        _refuse_long(version, example, rows, tokenizers)
    return Item(ask, version, translator, example, rows, options)


def _rows(version: Version, translator: Translator, example: Example, tokenizers: Tokenizers) -> list[Row]:
    with tokenizers.borrow() as tokenizer:
        try:
            (rows,) = translator.rows(tokenizer, [example], version.limit)
        except InlayError:
            raise
        except Exception as error:  # a lone surrogate, say: each tokenizer complains in its own way
            raise InlayError(f"{version.name!r} cannot read this text: {error}") from error
    return rows


def _rows_key(translator: Translator, limit: int) -> Hashable:
    """Equal for tasks that make the same rows from a text."""
    task = translator.task
    if task.asked_options is None:
        return limit, task, translator.labels
    return limit, tuple((option, getattr(task, option)) for option in task.asked_options)


def _refuse_long(version: Version, example: Example, rows: list[Row], tokenizers: Tokenizers) -> None:
    with tokenizers.borrow() as tokenizer:
        length = len(tokenizer(example.shown(), example.pair, verbose=False)["input_ids"])
    limit = max(len(row.ids) for row in rows)
    allowed = "pass long=windows to read all of it, or long=cut"
    raise InlayError(f"the text has {length:,} tokens, and {version.name!r} takes {limit:,} at once; {allowed}")
