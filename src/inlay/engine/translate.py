"""From requests to rows of token ids, and from logits to answers.

This needs an adapter's task, labels and columns, but none of its tensors: a service encodes for adapters that are still
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
    """Turns requests to an adapter or an ensemble into rows, and logits into answers."""

    name: str
    task: Task
    labels: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The columns it was trained on; empty where they are not known."""
    members: tuple[Translator, ...] = ()
    """The translators of an ensemble's adapters; empty for an adapter."""
    weights: tuple[int, ...] = ()
    """The weight of each member."""

    @cached_property
    def takes_text(self) -> bool:
        """Whether any single text is a valid request, without a check."""
        return self.task.kind == "tagging" or (self.task.kind != "qa" and not self.columns.get("pair"))

    @cached_property
    def asked_key(self) -> Hashable:
        """Adapters with equal keys make the same rows of a request; by default the key is the adapter's own name."""
        task, options = self.task, self.task.asked_options
        if options is None:
            return self.name
        return task.max_length, *options, *[getattr(task, option) for option in options]

    @cached_property
    def decode_key(self) -> tuple[type[Task], int]:
        """Adapters with equal keys are decoded together, so that many labels of one add no columns to others."""
        return type(self.task), max(_FEW_LABELS, (len(self.labels) - 1).bit_length())

    @cached_property
    def raw(self) -> Translator:
        """The same without calibration."""
        return replace(self, task=self.task.raw(), members=tuple(member.raw for member in self.members))

    def example(self, content: Any) -> Example:
        """A request in any of its forms, as an example; it must have one text or two, as the adapter was trained."""
        example = self._any_form(content)
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
        """The rows as one batch, where every example has one row and no target; None if the task cannot do that."""
        return None if self.task.draws else self.task.packed(tokenizer, examples, limit)

    def in_windows(self) -> Translator:
        """A translator that reads long texts in windows instead of cutting them; itself if its task has no windows."""
        long: Any = {"long": "windows"} if hasattr(self.task, "long") else {}
        members = tuple(member.in_windows() for member in self.members)
        return replace(self, task=replace(self.task, **long), members=members) if long else self

    def _any_form(self, content: Any) -> Example:
        if isinstance(content, Example):
            return content
        if isinstance(content, str):
            if self.task.kind == "qa":
                raise InlayError(f"{self.name!r} answers questions: pass (question, context)")
            return Example(content)
        if isinstance(content, Mapping):
            return _named(content)
        if isinstance(content, tuple) and len(content) == 2:
            return Example(str(content[0]), str(content[1]))
        if isinstance(content, list) and all(isinstance(word, str) for word in content):
            return Example(words=tuple(content)) if self.task.kind == "tagging" else Example(" ".join(content))
        raise InlayError(f"a request is a text, a pair of texts, a list of words or a mapping, not {content!r}")


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
        translators = [t.raw for t in translators]
    decode = _together if [t for t in translators if t.members] else _decoded
    answers = decode(translators, outputs, rows, examples, base)
    if options.top_k is not None or options.threshold is not None:
        answers = [_trimmed(answer, options, t.name) for answer, t in zip(answers, translators, strict=True)]
    names = [t.name for t in translators]
    texts, pairs = [" ".join(e.words) if e.words else e.text for e in examples], [e.pair for e in examples]
    # answers by column are of one kind
    if isinstance(answers, ByColumn) and translators[0].task.kind != "qa" and pairs.count(None) in (0, len(pairs)):
        paired = {} if pairs[0] is None else {"pair": pairs}
        return ByColumn({"task": names, "text": texts, **paired, **answers.columns})
    full_answers: list[Answer] = []
    for translator, text, pair, answer in zip(translators, texts, pairs, answers, strict=True):
        second = {"context": pair} if translator.task.kind == "qa" else {} if pair is None else {"pair": pair}
        full_answers.append({"task": translator.name, "text": text, **second, **answer})
    return full_answers


def _decoded(
    translators: Sequence[Translator],
    outputs: Sequence[Sequence[Tensor]],
    rows: Sequence[Sequence[Row]],
    examples: Sequence[Example],
    base: Base,
) -> Sequence[Answer]:
    """The tasks' answers; by column where all tasks are of one kind that has columns."""
    keys = [t.decode_key for t in translators]
    if len(set(keys)) == 1:
        tasks, labels = [t.task for t in translators], [t.labels for t in translators]
        return keys[0][0].mixed_answers(tasks, outputs, rows, examples, labels, base)
    numbers_of_key: dict[tuple[type[Task], int], list[int]] = {}
    for i, key in enumerate(keys):
        numbers_of_key.setdefault(key, []).append(i)
    answers: list[Answer] = [{}] * len(translators)
    for (kind, _), numbers in numbers_of_key.items():
        tasks, labels = [translators[i].task for i in numbers], [translators[i].labels for i in numbers]
        parts = some_of(outputs, numbers), some_of(rows, numbers), [examples[i] for i in numbers]
        for i, answer in zip(numbers, kind.mixed_answers(tasks, *parts, labels, base), strict=True):
            answers[i] = answer
    return answers


def some_of(items: Any, numbers: Sequence[int]) -> Any:
    """The rows or outputs of the examples with these numbers, in the same form."""
    packed = type(items) in (PackedRows, PooledOutputs)
    return items.take(numbers) if packed else [items[i] for i in numbers]


def _together(
    translators: Sequence[Translator],
    outputs: Sequence[Sequence[Tensor]],
    rows: Sequence[Sequence[Row]],
    examples: Sequence[Example],
    base: Base,
) -> list[Answer]:
    """The same with ensembles: the answers of all members, combined into one answer of each ensemble."""
    from inlay.engine.ensembles import parts, repeated

    flat, (member_rows, member_examples), counts = repeated(translators, rows, examples)
    answers = iter(_decoded(flat, parts(outputs, counts), member_rows, member_examples, base))
    combined: list[Answer] = []
    for translator, count in zip(translators, counts, strict=True):
        group = [next(answers) for _ in range(count)]
        if translator.members:
            group = [translator.task.together(group, translator.weights, translator.labels)]
        combined += group
    return combined


def _named(content: Mapping[str, Any]) -> Example:
    """A request as a mapping: text and pair, question and context, or tokens."""
    for keys in (("text", "pair"), ("question", "context"), ("tokens",)):
        if keys[0] in content and not set(content) - set(keys):
            values = [content.get(key) for key in keys]
            if keys == ("tokens",) and isinstance(values[0], list | tuple):
                return Example(words=tuple(str(word) for word in values[0]))
            if keys != ("tokens",) and isinstance(values[0], str) and isinstance(values[1], str | None):
                return Example(values[0], values[1])
    raise InlayError(f"a request is text and pair, question and context, or tokens (a list), not {dict(content)!r}")


def _trimmed(answer: Answer, options: AnswerOptions, name: str) -> Answer:
    """Keep `top_k` scores, and drop a label below the threshold."""
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
