"""Between people and rows: what was asked becomes rows of token ids, logits become an answer.

It needs an adapter's task, labels and columns, and none of its tensors: a service encodes for adapters that are still
on disk.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from inlay.base.load import Base
from inlay.data.batch import Batch
from inlay.data.by_column import ByColumn
from inlay.engine.answer_options import AnswerOptions, uncertainty
from inlay.errors import InlayError
from inlay.tasks import Answer, Example, Row, Task
from inlay.tasks._packed import PackedRows, PooledOutputs

_FEW_LABELS = 3
"""Adapters with up to 2 to the power of this many labels are decoded together."""


@dataclass(frozen=True)
class Translator:
    """How one adapter is asked, and how it answers."""

    name: str
    task: Task
    labels: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Those it was trained with; empty where nobody knows."""
    members: tuple[Translator, ...] = ()
    """Of an ensemble: how each of its adapters answers; an adapter has none."""
    weights: tuple[int, ...] = ()
    """How much each of them counts."""

    @cached_property
    def takes_text(self) -> bool:
        """Whether a text alone can be asked: nothing of it needs a look."""
        return self.task.kind == "tagging" or (self.task.kind != "qa" and not self.columns.get("pair"))

    @cached_property
    def asked_key(self) -> Hashable:
        """Adapters with equal keys make the same rows of what is asked: its name, unless its task says what counts."""
        task, options = self.task, self.task.asked_options
        return self.name if options is None else (task.max_length, *options, *[getattr(task, one) for one in options])

    @cached_property
    def decode_key(self) -> tuple[type[Task], int]:
        """Adapters with equal keys are decoded together: one with many labels costs others no columns."""
        return type(self.task), max(_FEW_LABELS, (len(self.labels) - 1).bit_length())

    @cached_property
    def raw(self) -> Translator:
        """The same without calibration."""
        return replace(self, task=self.task.raw(), members=tuple(one.raw for one in self.members))

    def example(self, what: Any) -> Example:
        """What was asked, in any of its forms; one text or two, as the adapter was trained."""
        example = self._any_form(what)
        if self.columns and self.task.kind not in ("qa", "tagging"):
            if self.columns.get("pair") and example.pair is None:
                raise InlayError(
                    f"{self.name!r} was trained on pairs of texts, and this is one text: give the second as well "
                    "(pair; on the command line --pair)"
                )
            if not self.columns.get("pair") and example.pair is not None:
                raise InlayError(f"{self.name!r} was trained on single texts: it takes no pair")
        return example

    def rows(self, tokenizer: Any, examples: Sequence[Example], limit: int) -> list[list[Row]]:
        """The rows of every example, of at most `limit` tokens."""
        encoded = self.task.encode(tokenizer, examples, self.labels, limit)
        if self.task.draws:
            encoded = self.task.draw(encoded, tokenizer, torch.Generator().manual_seed(0))
        if [row.example for row in encoded] == list(range(len(examples))):  # nothing was cut into windows
            return [[row] for row in encoded]
        rows: list[list[Row]] = [[] for _ in examples]
        for row in encoded:
            rows[row.example].append(row)
        return rows

    def packed(self, tokenizer: Any, examples: Sequence[Example], limit: int) -> Batch | None:
        """The same as one batch, where every example has one row and no target, and the task can do that."""
        return None if self.task.draws else self.task.packed(tokenizer, examples, limit)

    def in_windows(self) -> Translator:
        """The same, but nothing of a long text is cut off; no other where that is so anyway."""
        long: Any = {"long": "windows"} if hasattr(self.task, "long") else {}
        members = tuple(one.in_windows() for one in self.members)
        return replace(self, task=replace(self.task, **long), members=members) if long else self

    def _any_form(self, what: Any) -> Example:
        if isinstance(what, Example):
            return what
        if isinstance(what, str):
            if self.task.kind == "qa":
                raise InlayError(f"{self.name!r} answers questions: pass (question, context)")
            return Example(what)
        if isinstance(what, Mapping):
            return _named(what)
        if isinstance(what, tuple) and len(what) == 2:
            return Example(str(what[0]), str(what[1]))
        if isinstance(what, list) and all(isinstance(word, str) for word in what):
            return Example(words=tuple(what)) if self.task.kind == "tagging" else Example(" ".join(what))
        raise InlayError(f"a request is a text, a pair of texts, a list of words or a mapping, not {what!r}")


def answers_of(
    translators: Sequence[Translator],
    outputs: Sequence[Sequence[Tensor]],
    rows: Sequence[Sequence[Row]],
    examples: Sequence[Example],
    base: Base,
    options: AnswerOptions,
) -> Sequence[Answer]:
    """The answers for examples of any adapters, from the rows of each; those of one kind are decoded together."""
    if options.raw:
        translators = [one.raw for one in translators]
    how = _together if [one for one in translators if one.members] else _decoded
    found = how(translators, outputs, rows, examples, base)
    if options.top_k is not None or options.threshold is not None:
        found = [_trimmed(answer, options, one.name) for answer, one in zip(found, translators, strict=True)]
    names = [one.name for one in translators]
    texts, pairs = [" ".join(e.words) if e.words else e.text for e in examples], [e.pair for e in examples]
    # answers by column are of one kind
    if isinstance(found, ByColumn) and translators[0].task.kind != "qa" and pairs.count(None) in (0, len(pairs)):
        paired = {} if pairs[0] is None else {"pair": pairs}
        return ByColumn({"task": names, "text": texts, **paired, **found.columns})
    whole: list[Answer] = []
    for one, text, pair, answer in zip(translators, texts, pairs, found, strict=True):
        second = {"context": pair} if one.task.kind == "qa" else {} if pair is None else {"pair": pair}
        whole.append({"task": one.name, "text": text, **second, **answer})
    return whole


def _decoded(
    translators: Sequence[Translator],
    outputs: Sequence[Sequence[Tensor]],
    rows: Sequence[Sequence[Row]],
    examples: Sequence[Example],
    base: Base,
) -> Sequence[Answer]:
    """What the tasks say; by column where all are of one kind, and that has columns."""
    keys = [one.decode_key for one in translators]
    if len(set(keys)) == 1:
        tasks, labels = [one.task for one in translators], [one.labels for one in translators]
        return keys[0][0].mixed_answers(tasks, outputs, rows, examples, labels, base)
    alike: dict[tuple[type[Task], int], list[int]] = {}
    for i, key in enumerate(keys):
        alike.setdefault(key, []).append(i)
    found: list[Answer] = [{}] * len(translators)
    for (kind, _), own in alike.items():
        tasks, labels = [translators[i].task for i in own], [translators[i].labels for i in own]
        ran, seen, asked = some_of(outputs, own), some_of(rows, own), [examples[i] for i in own]
        for i, answer in zip(own, kind.mixed_answers(tasks, ran, seen, asked, labels, base), strict=True):
            found[i] = answer
    return found


def some_of(items: Any, own: Sequence[int]) -> Any:
    """These of the rows or outputs of examples, in the same form."""
    packed = type(items) in (PackedRows, PooledOutputs)
    return items.take(own) if packed else [items[i] for i in own]


def _together(
    translators: Sequence[Translator],
    outputs: Sequence[Sequence[Tensor]],
    rows: Sequence[Sequence[Row]],
    examples: Sequence[Example],
    base: Base,
) -> list[Answer]:
    """The same where some are ensembles: the answers of all members, then one of those of each ensemble."""
    from inlay.engine.ensembles import parts, repeated

    flat, (seen, asked), counts = repeated(translators, rows, examples)
    answers = iter(_decoded(flat, parts(outputs, counts), seen, asked, base))
    found: list[Answer] = []
    for one, count in zip(translators, counts, strict=True):
        own = [next(answers) for _ in range(count)]
        found.append(one.task.together(own, one.weights, one.labels) if one.members else own[0])
    return found


def _named(what: Mapping[str, Any]) -> Example:
    """A request as a mapping: text and pair, question and context, or tokens."""
    for keys in (("text", "pair"), ("question", "context"), ("tokens",)):
        if keys[0] in what and not set(what) - set(keys):
            values = [what.get(key) for key in keys]
            if keys == ("tokens",) and isinstance(values[0], list | tuple):
                return Example(words=tuple(str(word) for word in values[0]))
            if keys != ("tokens",) and isinstance(values[0], str) and isinstance(values[1], str | None):
                return Example(values[0], values[1])
    raise InlayError(f"a request is text and pair, question and context, or tokens (a list), not {dict(what)!r}")


def _trimmed(answer: Answer, options: AnswerOptions, name: str) -> Answer:
    """Fewer scores, and no label when too unsure."""
    out, threshold = dict(answer), options.threshold
    if isinstance(threshold, str):
        if "uncertainty" not in out:
            raise InlayError(f"threshold {threshold} is for ensembles; {name!r} is one adapter")
        is_unsure, threshold = out["uncertainty"] > (uncertainty(threshold) or 0.0), None
        if is_unsure:
            out |= dict.fromkeys(out.keys() & {"label", "answer", "start", "end", "value"})
            out |= {"spans": []} if "spans" in out else {}
    if options.top_k is not None and "scores" in out:
        best = sorted(out["scores"].items(), key=lambda item: -item[1])[: options.top_k]
        out["scores"] = dict(best)
    if threshold is not None and "score" in out and out["score"] < threshold:
        out |= dict.fromkeys(out.keys() & {"label", "answer", "start", "end"})
    if threshold is not None and "spans" in out:
        out["spans"] = [span for span in out["spans"] if span["score"] >= threshold]
    return out
