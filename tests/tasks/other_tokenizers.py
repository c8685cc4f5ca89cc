"""Tokenizers that treat spaces in other ways than word pieces do, small enough to make on the spot."""

from __future__ import annotations

import transformers as t


def byte_level() -> t.PreTrainedTokenizerFast:
    """As RoBERTa's: a space belongs to the word behind it, so `oslo` is one piece in a text and four at its start."""
    from tokenizers import pre_tokenizers

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    parts = ["Ġo", "Ġos", "Ġosl", "Ġoslo"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *bytes_, *parts]
    merges = [("Ġ", "o"), ("Ġo", "s"), ("Ġos", "l"), ("Ġosl", "o")]
    return t.RobertaTokenizerFast(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges, model_max_length=64
    )


def metaspace() -> t.PreTrainedTokenizerFast:
    """As XLM-R's: a piece's characters include the space in front of it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    scores = [(token, 0.0) for token in special] + [(c, -3.0) for c in "▁abcdefghijklmnopqrstuvwxyz0123456789é.,?!"]
    scores += [(word, -1.0) for word in ("▁paris", "▁in", "▁is")]
    inner = Tokenizer(models.Unigram(scores, unk_id=3))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    return t.PreTrainedTokenizerFast(tokenizer_object=inner, mask_token="<mask>", model_max_length=64, **names)
