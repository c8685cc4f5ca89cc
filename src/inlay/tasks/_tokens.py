"""Token ids of many texts: what a tokenizer's own call gives, without the objects that call makes on the way.

A fast tokenizer is Rust behind a Python call that wraps every text in several dictionaries. Here its backend is asked,
with the same truncation; a tokenizer of another kind, or one that encodes in a way of its own, is called as usual.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

Ids = list[list[int]]


def token_ids(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str | None] | None, limit: int | None
) -> tuple[Ids, Ids | None]:
    """Ids and token types of every text or pair; None for types where the model has none, or all are 0.

    Args:
        limit: cut at this many tokens, the longer text of a pair first; None to cut nothing.
    """
    if not is_plain(type(tokenizer)):  # type: ignore[arg-type]  # mypy: a type[Any] cannot be hashed
        options: dict[str, Any] = {"verbose": False} if limit is None else {"truncation": True, "max_length": limit}
        encoded = tokenizer(list(texts), None if pairs is None else list(pairs), **options)
        types = encoded.get("token_type_ids")
        return encoded["input_ids"], types if types is not None and any(map(any, types)) else None
    no_padding, no_truncation, longest_first = _strategies()
    truncation = no_truncation if limit is None else longest_first
    tokenizer.set_truncation_and_padding(no_padding, truncation, limit, 0, None, None)
    backend = tokenizer.backend_tokenizer
    if backend.encode_special_tokens != tokenizer.split_special_tokens:
        backend.encode_special_tokens = tokenizer.split_special_tokens
    encodings = backend.encode_batch_fast(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)))
    ids = [encoding.ids for encoding in encodings]
    if "token_type_ids" not in tokenizer.model_input_names:
        return ids, None
    if pairs is not None:
        types = [encoding.type_ids for encoding in encodings]
        return ids, types if any(map(any, types)) else None
    if not any(max(encodings, key=len).type_ids):  # among single texts, the longest has every type that occurs
        return ids, None
    return ids, [encoding.type_ids for encoding in encodings]


@functools.cache
def is_plain(kind: type) -> bool:
    """Whether a call of such a tokenizer is a call of its backend, and nothing else."""
    from transformers import PreTrainedTokenizerFast as Fast

    if not issubclass(kind, Fast) or hasattr(kind, "_switch_to_input_mode"):
        return False
    methods = ("__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding")
    return all(getattr(kind, name) is getattr(Fast, name) for name in methods)


@functools.cache
def _strategies() -> tuple[Any, Any, Any]:
    from transformers.tokenization_utils_base import TruncationStrategy
    from transformers.utils import PaddingStrategy

    return PaddingStrategy.DO_NOT_PAD, TruncationStrategy.DO_NOT_TRUNCATE, TruncationStrategy.LONGEST_FIRST
