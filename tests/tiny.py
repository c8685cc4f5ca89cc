"""Tiny random models of every architecture in the table, and small batches for them.

Weights are shaken, so that biases and norms matter and a wrong placement shows. INLAY_TEST_DEVICE=cuda and
INLAY_TEST_DTYPE=bfloat16 run the same tests elsewhere, with tolerances that fit the dtype. INLAY_TEST_KERNELS=1 takes
the kernels' path without a GPU, in Triton's interpreter: slow.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import transformers as t
from torch import nn

import inlay
from inlay.data.batch import Batch

if os.environ.get("INLAY_TEST_KERNELS"):
    import interpreted  # noqa: F401

DEVICE = torch.device(os.environ.get("INLAY_TEST_DEVICE", "cpu"))
DTYPE = getattr(torch, os.environ.get("INLAY_TEST_DTYPE", "float32"))
EXACT = torch.float32 == DTYPE
KERNELS = bool(os.environ.get("INLAY_TEST_KERNELS"))
VOCABULARY = 60
_SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MODERN = {**_SPECIAL, "cls_token_id": 3, "sep_token_id": 4}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
}

CONFIGS: dict[str, t.PreTrainedConfig] = {
    "bert": t.BertConfig(**_SIZE),
    "roberta": t.RobertaConfig(**_SIZE),
    "xlm-roberta": t.XLMRobertaConfig(**_SIZE),
    "electra": t.ElectraConfig(**_SIZE, embedding_size=8),
    "distilbert": t.DistilBertConfig(
        dim=16, n_layers=3, n_heads=2, hidden_dim=24, vocab_size=VOCABULARY, max_position_embeddings=40
    ),
    "mpnet": t.MPNetConfig(**_SIZE),
    "deberta-v2": t.DebertaV2Config(**_SIZE, **_DEBERTA, share_att_key=True, position_biased_input=False),
    "albert": t.AlbertConfig(**_SIZE, embedding_size=8, hidden_dropout_prob=0.1),
    "modernbert": t.ModernBertConfig(
        **_SIZE, **_MODERN, local_attention=6, global_attn_every_n_layers=2, mlp_dropout=0.1
    ),
    "gpt2": t.GPT2Config(n_embd=16, n_layer=3, n_head=2, n_inner=24, n_positions=40, vocab_size=VOCABULARY, **_SPECIAL),
    "llama": t.LlamaConfig(**_SIZE, **_SPECIAL, num_key_value_heads=1),
    "qwen2": t.Qwen2Config(**_SIZE, **_SPECIAL, num_key_value_heads=1),
}


def model(name: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A tiny random model with shaken weights."""
    config = type(CONFIGS[name]).from_dict({**CONFIGS[name].to_dict(), **changes})
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        built = t.AutoModel.from_config(config)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in built.parameters():
            p += torch.randn(p.shape, generator=random) * (0.2 if p.dim() > 1 else 0.1)
    return built.eval().to(DEVICE, DTYPE)


def host(name: str = "bert", seed: int = 0, **changes: Any) -> inlay.Host:
    """A host on a tiny random model."""
    made = inlay.Host(model(name, seed, **changes), device=DEVICE, dtype=DTYPE)
    made.forward.kernels = KERNELS or made.forward.kernels
    return made


WORDS = (
    "the a is was not very good bad fine awful film book soup parcel refund late never came love hate ana bob lima "
    "oslo who what where when meets in on at for and it you i we our my your no yes 1 2 3 2024 may june dollar euro "
    ". , ! ? '"
).split()


def tokenizer() -> t.PreTrainedTokenizerFast:
    """A word-piece tokenizer that knows a few words and all letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = dict.fromkeys([*special, *WORDS, *letters, *(f"##{c}" for c in letters)])
    vocabulary = {token: i for i, token in enumerate(tokens)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=40))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return t.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def text_host(name: str = "bert", seed: int = 0, **changes: Any) -> inlay.Host:
    """A host on a tiny random model that reads text."""
    words = tokenizer()
    made = host(name, seed, **{"vocab_size": len(words), "max_position_embeddings": 64, **changes})
    made.base.tokenizer = words
    return made


def save_text_model(folder: Any, name: str = "bert", **changes: Any) -> str:
    """A tiny model with its tokenizer in a folder, for the command line."""
    words = tokenizer()
    built = model(name, **{"vocab_size": len(words), "max_position_embeddings": 64, **changes})
    built.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str = "", gradient: bool = False) -> None:
    """Equal up to rounding: 1e-5 in fp32, a few percent of the largest value in half precision."""
    assert actual.shape == expected.shape, what
    difference = (actual.float() - expected.float()).abs().max().item()
    size = max(1.0, expected.float().abs().max().item())
    allowed = (1e-4 * size if gradient else 1e-5 * size) if EXACT else (0.15 * size if gradient else 0.06 * size)
    assert difference <= allowed, f"{what}: {difference} > {allowed}"


def batch(rows: int, seed: int = 0, longest: int = 12) -> Batch:
    """Rows of random tokens of random lengths; the first has one token."""
    random = torch.Generator().manual_seed(seed)
    lengths = [1, *torch.randint(1, longest + 1, (rows - 1,), generator=random).tolist()] if rows > 1 else [longest]
    return Batch.of([torch.randint(5, VOCABULARY, (n,), generator=random).tolist() for n in lengths])


def ids_of(batch: inlay.Batch) -> torch.Tensor:
    """[tokens], as a model takes them."""
    return torch.from_numpy(batch.ids).long()


def rows_of(batch: inlay.Batch) -> list[torch.Tensor]:
    """The ids of every row."""
    return list(torch.split(ids_of(batch), batch.lengths.tolist()))


def shake(host: inlay.Host, name: str, seed: int = 0, scale: float = 0.3) -> None:
    """Give an adapter random values, so that every part of it acts."""
    slot = host.slot(name)
    random = torch.Generator().manual_seed(seed)
    bank, weights = host.forward.bank, host.forward.bank.slot(slot).weights
    tensors = {n: t for n, t in bank.read(slot).items() if n in bank.slot(slot).params}
    constant = {n for n, p in bank.slot(slot).params.items() if p.is_fixed}

    def move(name: str, value: torch.Tensor, scale: float) -> torch.Tensor:
        noise = (torch.randn(value.shape, generator=random) * scale).to(value.device)
        return 0.8 + 0.3 * noise if name.endswith(".gate") else value + noise  # half open: gradients flow

    bank.write(slot, {n: v if n in constant else move(n, v, scale) for n, v in tensors.items()})
    if weights is not None:
        with torch.no_grad():
            for n, v in weights.tensors.items():
                if v.is_floating_point():
                    v.copy_(move(n, v, scale / 3))
