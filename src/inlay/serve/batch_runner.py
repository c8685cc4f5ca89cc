"""One batch: from pieces of asks to answers. The host runs it as it runs `Host.predict`.

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
        """Run pieces, and answer the asks that are complete; False if all failed, and no ask has caused that."""
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
        """Fail asks, except those that were cancelled or answered; returns how many failed."""
        errors = {item: copy.copy(error) for item in dict.fromkeys(items) if item.begin() and not item.pending.done()}
        if errors:
            self._settle(errors)
        return len(errors)

    def _outputs(self, pieces: Sequence[Piece]) -> list[list[Sequence[Tensor]]]:
        """For every row of every piece: the outputs of all adapters that answer."""
        routed = [(row, piece.item.version.refs) for piece in pieces for row in piece.rows]
        rows, names = [row for row, refs in routed for _ in refs], [ref for _, refs in routed for ref in refs]
        outputs = iter(run_rows(self.host, rows, names, self.tokens))
        return [[[next(outputs) for _ in piece.item.version.refs] for _ in piece.rows] for piece in pieces]

    def _one_by_one(self, pieces: Sequence[Piece], failed: dict[Item, Exception]) -> list[list[Sequence[Tensor]]]:
        outputs: list[list[Sequence[Tensor]]] = []
        for piece in pieces:
            try:
                outputs += self._outputs([piece])
            except Exception as error:
                failed[piece.item] = _log_bug(error)
                outputs.append([()] * (piece.end - piece.start))
        return outputs

    def _settle(self, items: Mapping[Item, Exception | None], batch: BatchDone | None = None) -> None:
        """Decode and count, then set the results: a caller who has an answer finds it counted.

        Args:
            batch: the batch of these asks; None if they never ran.
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
        """Decode what has run, asks with equal options together; if that fails, one by one."""
        answers: dict[Item, Answer | Exception] = {}
        for options in dict.fromkeys([item.options for item in items]):
            alike = [item for item in items if item.options == options]
            try:
                answers |= zip(alike, self._decode(alike), strict=True)
            except Exception as error:
                if len(alike) == 1:
                    answers[alike[0]] = _log_bug(error)
                else:
                    for item in alike:
                        answers |= self._answers([item])
        return answers

    def _decode(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to asks with equal options."""
        outputs = [[out for member in zip(*item.outputs, strict=True) for out in member] for item in items]
        translators, rows = [item.translator for item in items], [item.rows for item in items]
        examples = [item.example for item in items]
        answers = list(answers_of(translators, outputs, rows, examples, self.host.base, items[0].options))
        for item, answer in zip(items, answers, strict=True):
            answer["version"] = item.version.entry.version
            if item.ask.explain:
                answer |= self._explain(item, answer)
        return answers

    def _explain(self, item: Item, answer: Answer) -> Answer:
        """Each token's weight in what AdapterBias adds: the mean of |alpha| over layers; per word in tagging."""
        from inlay.engine.alpha import alphas

        if len(item.version.refs) > 1:
            return {}
        parts = (alphas(self.host, batch_of(p.rows), [*item.version.refs] * len(p.rows)) for p in item.pieces)
        weights = [alpha.abs().mean(0).tolist() for part in parts for alpha in part if alpha is not None]
        if len(weights) < len(item.rows):
            return {}
        if item.translator.task.kind == "tagging":
            of_word = {word: w[token] for row, w in zip(item.rows, weights, strict=True) for token, word in row.aux}
            return {"alpha": [of_word.get(word, 0.0) for word in range(len(answer["tokens"]))]}
        with self.tokenizers.borrow() as tokenizer:
            tokens = [t for row in item.rows for t in tokenizer.convert_ids_to_tokens(list(row.ids))]
        return {"tokens": tokens, "alpha": [weight for row_weights in weights for weight in row_weights]}


def _log_bug(error: Exception) -> Exception:
    """Log an error that no caller has caused; returns it without its frames, which would keep the batch alive."""
    if not isinstance(error, InlayError):
        _log.error("an ask failed", exc_info=error)
    return error.with_traceback(None)


def _answered(item: Item, outcome: Answer | Exception) -> Answered:
    name, item.pending.seconds = item.version.name, time.monotonic() - item.accepted
    if isinstance(outcome, Exception):
        return Answered(name, item.pending.seconds, error=type(outcome).__name__)
    return Answered(name, item.pending.seconds, labels_of(outcome), outcome.get("score"))
