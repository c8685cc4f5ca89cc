"""Texts as the base sees them, and the word of every token.

A word is a run of letters and digits, with an apostrophe or a hyphen inside. Tokens are matched to words by their
characters, so words are the same for every tokenizer. Long texts are cut as in `Host.batch`; a task's masks and windows
are not used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from inlay.analysis.rows import in_batches
from inlay.base.load import load_tokenizer
from inlay.engine.alpha import alphas, has_alpha
from inlay.engine.host import Host
from inlay.engine.predict import limit_of
from inlay.errors import AdapterError, BaseError, DataError
from inlay.tasks import Example, Row
from inlay.tasks.tagging import word_spans

_INSIDE = "'\u2019-"
"""Characters that may stand between two parts of a word."""
_AT_ONCE = 1000


@dataclass(frozen=True)
class Text:
    """An example as a row."""

    row: Row
    plain: tuple[int, ...]
    """The numbers of its tokens without the special ones."""
    words: tuple[tuple[str, tuple[int, ...]], ...]
    """Every word in lower case, and the numbers of its tokens."""


def read(host: Host, name: str, examples: Sequence[Example]) -> list[Text]:
    """The texts, or pairs of texts, of these examples, cut at an adapter's limit."""
    if not examples:
        raise DataError(f"there is no text to show {name}")
    tokenizer, limit = load_tokenizer(host.base), limit_of(host, name)
    if not tokenizer.is_fast:
        raise BaseError(f"{host.base.name} has a tokenizer that cannot say where in the text its pieces are")
    texts: list[Text] = []
    for paired, group in groupby(examples, key=lambda example: example.pair is not None):
        alike = list(group)
        for start in range(0, len(alike), _AT_ONCE):
            texts += _encode(tokenizer, limit, alike[start : start + _AT_ONCE], paired)
    return texts


def refuse_without_alpha(host: Host, names: Iterable[str]) -> None:
    """Raise an error if one of these adapters does not weigh its shift by token."""
    without = [f"{name} is {host.adapter(name).method}" for name in names if not has_alpha(host, host.slot(name))]
    if without:
        raise AdapterError(f"{', '.join(without)}, which has no alpha; only adapterbias weighs its shift by token")


def weights(host: Host, requests: Sequence[tuple[str, Text]]) -> list[Tensor]:
    """[layers, tokens] alpha of every text under an adapter that has it; adapters share batches."""
    alpha_of = dict(in_batches(host, [(name, text.row) for name, text in requests], alphas))
    return [alpha.float() for i in range(len(requests)) if (alpha := alpha_of[i]) is not None]


def _encode(tokenizer: Any, limit: int, examples: Sequence[Example], paired: bool) -> list[Text]:
    texts, pairs = [e.shown() for e in examples], [e.pair or "" for e in examples]
    options = {"truncation": True, "max_length": limit, "return_offsets_mapping": True}
    encoded = tokenizer(texts, pairs if paired else None, **options)
    types = encoded.get("token_type_ids")
    # a text may spell out a special token; an unknown word is a word all the same
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    seen = []
    for n in range(len(examples)):
        ids = encoded["input_ids"][n]
        spans = [_spans(texts[n]), _spans(pairs[n])]
        words: dict[tuple[int, int], list[int]] = {}
        plain = []
        offsets = zip(encoded["offset_mapping"][n], encoded.sequence_ids(n), strict=True)
        for token, ((start, end), part) in enumerate(offsets):
            if part is None or ids[token] in special:
                continue
            plain.append(token)
            word = _word_at(spans[part], end - 1)  # by its last character: some count the space in front with a piece
            if start < end and word is not None:
                words.setdefault((part, word), []).append(token)
        both = (texts[n], pairs[n])
        named = [(both[p][slice(*spans[p][w])].lower(), tuple(numbers)) for (p, w), numbers in words.items()]
        row = Row(ids, None if types is None else types[n], None, n)
        seen.append(Text(row, tuple(plain), tuple(named)))
    return seen


def _word_at(spans: Sequence[tuple[int, int]], character: int) -> int | None:
    """The number of the word that a character is in."""
    word = bisect_right(spans, character, key=lambda span: span[0]) - 1
    return word if word >= 0 and character < spans[word][1] else None


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are, without punctuation."""
    spans: list[tuple[int, int]] = []
    for start, end in word_spans(text):
        if not any(c.isalnum() for c in text[start:end]):
            continue
        if spans and spans[-1][1] + 1 == start and text[start - 1] in _INSIDE:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans
