"""One batch: from pieces of asks to answers. The host runs it as it runs `Host.predict`; nothing here is a second way.

If a batch fails, its pieces run once more, each alone, so that one that cannot run fails by itself.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from inlay.engine.host import Host
from inlay.engine.predict import batch_of, run_rows
from inlay.engine.translate import answers_of
from inlay.errors import InlayError
from inlay.serve.counters import Counters, labels_of
from inlay.serve.engine_types import Answer, Answered, BatchDone
from inlay.serve.version import Item, Piece, Tokenizers
from inlay.tasks import Row

_log = logging.getLogger(__name__)


class BatchRunner:
    """Runs batches on a host, in the thread that owns it."""

    def __init__(
        self, host: Host, tokenizers: Tokenizers, tokens: int, counters: Counters, closed: Callable[[list[Item]], None]
    ):
        """
        Args:
            tokens: of one batch.
            closed: called with asks that are about to be answered, or to fail.
        """
        self.host, self.tokenizers, self.tokens, self.counters = host, tokenizers, tokens, counters
        self._closed = closed

    def warm_up(self) -> None:
        """Batches of the bare base; on CUDA a full one too. Twice, since the second is recorded where that can be."""
        length, is_cuda = min(32, self.tokens), self.host.base.device.type == "cuda"
        for rows in (1, max(1, self.tokens // length) if is_cuda else 4):
            batch = batch_of([Row([1] * length)] * rows)
            for _ in range(2):
                with torch.no_grad():
                    self.host.hidden(batch, [None] * rows)
        if is_cuda:
            torch.cuda.synchronize(self.host.base.device)

    def works(self) -> bool:
        """Whether the bare base still runs."""
        try:
            with torch.no_grad():
                self.host.hidden(batch_of([Row([1])]), [None])
            if self.host.base.device.type == "cuda":
                torch.cuda.synchronize(self.host.base.device)
        except Exception:
            _log.exception("the base does not run")
            return False
        return True

    def run(self, pieces: Sequence[Piece]) -> bool:
        """Run pieces, and answer the asks that are whole; False if all failed, for reasons of nobody's asking."""
        began = time.perf_counter()
        failed: dict[Item, Exception] = {}
        try:
            outputs = self._outputs(pieces)
        except Exception:  # an error of one of them, or of memory
            outputs = self._one_by_one(pieces, failed)
        seconds = time.perf_counter() - began
        asks = len({piece.item for piece in pieces})
        finished: dict[Item, Exception | None] = {}
        for piece, out in zip(pieces, outputs, strict=True):
            item = piece.item
            item.outputs[piece.start : piece.end] = out
            item.left -= 1
            item.pending.batch = max(item.pending.batch, asks)
            if item.left == 0 or item in failed:
                finished[item] = failed.get(item)
        rows, tokens = sum(p.end - p.start for p in pieces), sum(p.tokens for p in pieces)
        self._settle(finished, BatchDone(rows, tokens, seconds, pieces[0].item.version.alone, ()))
        return len(failed) < asks or all(isinstance(error, InlayError) for error in failed.values())

    def fail(self, items: Iterable[Item], error: Exception) -> int:
        """Asks that will not run, unless they were cancelled or are answered; how many that were."""
        gone = {item: copy.copy(error) for item in dict.fromkeys(items) if item.begin() and not item.pending.done()}
        if gone:
            self._settle(gone)
        return len(gone)

    def _outputs(self, pieces: Sequence[Piece]) -> list[list[Sequence[Tensor]]]:
        """Of every piece's rows: the outputs of all adapters that answer."""
        asked = [(row, piece.item.version.refs) for piece in pieces for row in piece.rows]
        rows, names = [row for row, refs in asked for _ in refs], [ref for _, refs in asked for ref in refs]
        ran = iter(run_rows(self.host, rows, names, self.tokens))
        of_rows = iter([[next(ran) for _ in refs] for _, refs in asked])
        return [[next(of_rows) for _ in range(piece.start, piece.end)] for piece in pieces]

    def _one_by_one(self, pieces: Sequence[Piece], failed: dict[Item, Exception]) -> list[list[Sequence[Tensor]]]:
        found: list[list[Sequence[Tensor]]] = []
        for piece in pieces:
            try:
                found += self._outputs([piece])
            except Exception as error:
                failed[piece.item] = _told(error)
                found.append([()] * (piece.end - piece.start))
        return found

    def _settle(self, items: Mapping[Item, Exception | None], batch: BatchDone | None = None) -> None:
        """Decode, count, and then tell everyone who asked: who has an answer finds it counted.

        Args:
            batch: the one that these were in; None if they never ran.
        """
        answers = self._answers([item for item, error in items.items() if error is None])
        outcomes = [(item, answers[item] if error is None else error) for item, error in items.items()]
        answered = [_answered(item, outcome) for item, outcome in outcomes]
        if batch is None:
            self.counters.count(answered)
        else:
            self.counters.done(replace(batch, answers=answered))
        self._closed(list(items))
        for item, outcome in outcomes:
            if isinstance(outcome, Exception):
                item.pending.set_exception(outcome)
            else:
                item.pending.set_result(outcome)

    def _answers(self, items: Sequence[Item]) -> dict[Item, Answer | Exception]:
        """Decode what has run, those with equal options at once; if that fails, one by one."""
        found: dict[Item, Answer | Exception] = {}
        for options in dict.fromkeys([item.options for item in items]):
            some = [item for item in items if item.options == options]
            try:
                found |= zip(some, self._decoded(some), strict=True)
            except Exception as error:
                if len(some) == 1:
                    found[some[0]] = _told(error)
                else:
                    for item in some:
                        found |= self._answers([item])
        return found

    def _decoded(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to asks with equal options."""
        outputs = [[out for member in zip(*item.outputs, strict=True) for out in member] for item in items]
        asked = [item.translator for item in items], outputs, [item.rows for item in items]
        answers = list(answers_of(*asked, [item.example for item in items], self.host.base, items[0].options))
        for item, answer in zip(items, answers, strict=True):
            answer["version"] = item.version.entry.version
            if item.ask.explain:
                answer |= self._explained(item, answer)
        return answers

    def _explained(self, item: Item, answer: Answer) -> Answer:
        """Each token's share in what AdapterBias adds: the mean over layers of |alpha|; by words in tagging."""
        from inlay.engine.alpha import alphas

        if len(item.version.refs) > 1:
            return {}
        parts = (alphas(self.host, batch_of(p.rows), [*item.version.refs] * len(p.rows)) for p in item.pieces)
        weights = [one.abs().mean(0).tolist() for part in parts for one in part if one is not None]
        if len(weights) < len(item.rows):
            return {}
        if item.translator.task.kind == "tagging":
            of_word = {word: own[piece] for row, own in zip(item.rows, weights, strict=True) for piece, word in row.aux}
            return {"alpha": [of_word.get(word, 0.0) for word in range(len(answer["tokens"]))]}
        with self.tokenizers.one() as tokenizer:
            tokens = [t for row in item.rows for t in tokenizer.convert_ids_to_tokens(list(row.ids))]
        return {"tokens": tokens, "alpha": [w for own in weights for w in own]}


def _told(error: Exception) -> Exception:
    """An error for who asked; what is nobody's mistake is logged. Its frames would keep the batch alive."""
    if not isinstance(error, InlayError):
        _log.error("an ask failed", exc_info=error)
    return error.with_traceback(None)


def _answered(item: Item, outcome: Answer | Exception) -> Answered:
    name, item.pending.seconds = item.version.name, time.monotonic() - item.accepted
    if isinstance(outcome, Exception):
        return Answered(name, item.pending.seconds, error=type(outcome).__name__)
    return Answered(name, item.pending.seconds, labels_of(outcome), outcome.get("score"))
