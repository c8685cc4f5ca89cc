"""The architecture table: one row per `model_type`. Nothing else in Inlay knows the names of a model's modules.

A path is relative to a layer (in `sites`, `dropouts`, `attention_dropouts`, `own_attention`) or to the base model (in
`outside`, `position_bias`). `path[i/n]` is the i-th of n equal slices of a fused projection's output.

To add an architecture, add a row: `register(Arch(model_type="my-model", layers=..., sites=...))`. Loading a
model checks every path of its row against the model and names the one that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from inlay.errors import ArchError, suggest

SITE_KINDS = ("attn.q", "attn.k", "attn.v", "attn.out", "attn.norm", "ffn.in", "ffn.gate", "ffn.out", "ffn.norm")
OUTSIDE_KINDS = ("embed.norm", "final.norm", "pooler")


@dataclass(frozen=True)
class Arch:
    """Where the sites of one kind of model are."""

    model_type: str
    layers: str
    """Path of the list of layers."""
    sites: Mapping[str, str]
    """Site kind -> path in a layer."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Sites outside the layers -> path in the model; those of `optional` may be missing."""
    optional: tuple[str, ...] = ("pooler",)
    dropouts: Mapping[str, str] = field(default_factory=dict)
    """Sublayer output -> the dropout between it and the residual; models without one leave it out."""
    attention_dropouts: tuple[str, ...] = ()
    """Dropout of attention probabilities: padded rows have it if their run asks for it, packed rows never."""
    output: str = "encoder"
    """The module whose result is the last hidden state."""
    pooler_activation: str = "pooler.activation"
    norm_place: Literal["after", "before"] = "after"
    """Whether `attn.norm` and `ffn.norm` follow their sublayer (post-norm) or precede it (pre-norm)."""
    norm_kind: Literal["layer", "rms"] = "layer"
    first_position: Literal["zero", "after padding"] = "zero"
    """RoBERTa and its kin number positions from padding_idx + 1."""
    token_types: bool = False
    decoder: bool = False
    packable: bool = True
    """Whether attention can take row boundaries; if not, batches are padded."""
    own_attention: str | None = None
    """The module of a layer that computes attention itself, if it does not go through transformers' interface."""
    position_bias: str | None = None
    """The function in the model that computes what attention adds to its scores: states -> [rows, heads, n, n]. It
    depends only on the distance of two positions."""
    layer_gives: Literal["states", "tuple"] = "states"
    """What a layer's call returns."""
    single_slot: tuple[str, ...] = ()
    """Sites also called on something other than the batch's tokens; adapters there run in a pass of their own."""
    single_slot_if: str | None = None
    """The config field that turns `single_slot` on."""


_TABLE: dict[str, Arch] = {}


def register(arch: Arch) -> Arch:
    """Add a row to the table."""
    checks = (
        (arch.sites, SITE_KINDS),
        (arch.outside, OUTSIDE_KINDS),
        (arch.dropouts, SITE_KINDS),
        (arch.dropouts, arch.sites),
    )
    for kinds, valid in checks:
        for kind in (kind for kind in kinds if kind not in valid):
            raise ArchError(f"row {arch.model_type!r} has an unknown site {kind!r}. {suggest(kind, valid)}")
    _TABLE[arch.model_type] = arch
    return arch


def find(model_type: str) -> Arch:
    """The row of a model type."""
    if model_type not in _TABLE:
        raise ArchError(
            f"unsupported architecture {model_type!r}. {suggest(model_type, _TABLE)}. "
            "To add it: inlay.base.arch.register(Arch(model_type=..., layers=..., sites=...)), "
            "with the paths of its layers and projections"
        )
    return _TABLE[model_type]


def names() -> list[str]:
    """All model types that have a row."""
    return sorted(_TABLE)


_bert = register(
    Arch(
        model_type="bert",
        layers="encoder.layer",
        sites={
            "attn.q": "attention.self.query",
            "attn.k": "attention.self.key",
            "attn.v": "attention.self.value",
            "attn.out": "attention.output.dense",
            "attn.norm": "attention.output.LayerNorm",
            "ffn.in": "intermediate.dense",
            "ffn.out": "output.dense",
            "ffn.norm": "output.LayerNorm",
        },
        outside={"embed.norm": "embeddings.LayerNorm", "pooler": "pooler.dense"},
        dropouts={"attn.out": "attention.output.dropout", "ffn.out": "output.dropout"},
        attention_dropouts=("attention.self.dropout",),
        token_types=True,
    )
)
_roberta = register(replace(_bert, model_type="roberta", first_position="after padding"))
register(replace(_roberta, model_type="xlm-roberta"))
register(replace(_bert, model_type="electra", outside={"embed.norm": "embeddings.LayerNorm"}))
register(
    Arch(
        model_type="distilbert",
        layers="transformer.layer",
        sites={
            "attn.q": "attention.q_lin",
            "attn.k": "attention.k_lin",
            "attn.v": "attention.v_lin",
            "attn.out": "attention.out_lin",
            "attn.norm": "sa_layer_norm",
            "ffn.in": "ffn.lin1",
            "ffn.out": "ffn.lin2",
            "ffn.norm": "output_layer_norm",
        },
        outside={"embed.norm": "embeddings.LayerNorm"},
        dropouts={"ffn.out": "ffn.dropout"},
        attention_dropouts=("attention.dropout",),
        output="transformer",
    )
)
register(
    replace(
        _roberta,
        model_type="mpnet",
        sites={
            **_bert.sites,
            "attn.q": "attention.attn.q",
            "attn.k": "attention.attn.k",
            "attn.v": "attention.attn.v",
            "attn.out": "attention.attn.o",
            "attn.norm": "attention.LayerNorm",
        },
        dropouts={"attn.out": "attention.dropout", "ffn.out": "output.dropout"},
        attention_dropouts=("attention.attn.dropout",),
        token_types=False,
        own_attention="attention.attn",
        position_bias="encoder.compute_position_bias",
        layer_gives="tuple",
    )
)
register(
    replace(
        _bert,
        model_type="deberta-v2",
        sites={
            **_bert.sites,
            "attn.q": "attention.self.query_proj",
            "attn.k": "attention.self.key_proj",
            "attn.v": "attention.self.value_proj",
        },
        outside={"embed.norm": "embeddings.LayerNorm"},
        attention_dropouts=("attention.self.dropout", "attention.self.pos_dropout"),
        packable=False,
        single_slot=("attn.q", "attn.k"),
        single_slot_if="share_att_key",
    )
)
register(
    Arch(
        model_type="albert",
        layers="encoder.albert_layer_groups.*.albert_layers",
        sites={
            "attn.q": "attention.query",
            "attn.k": "attention.key",
            "attn.v": "attention.value",
            "attn.out": "attention.dense",
            "attn.norm": "attention.LayerNorm",
            "ffn.in": "ffn",
            "ffn.out": "ffn_output",
            "ffn.norm": "full_layer_layer_norm",
        },
        outside={"embed.norm": "embeddings.LayerNorm", "pooler": "pooler"},
        dropouts={"attn.out": "attention.output_dropout"},
        attention_dropouts=("attention.attention_dropout",),
        pooler_activation="pooler_activation",
        token_types=True,
    )
)
register(
    Arch(
        model_type="modernbert",
        layers="layers",
        sites={
            "attn.q": "attn.Wqkv[0/3]",
            "attn.k": "attn.Wqkv[1/3]",
            "attn.v": "attn.Wqkv[2/3]",
            "attn.out": "attn.Wo",
            "attn.norm": "attn_norm",
            "ffn.in": "mlp.Wi",
            "ffn.out": "mlp.Wo",
            "ffn.norm": "mlp_norm",
        },
        outside={"embed.norm": "embeddings.norm", "final.norm": "final_norm"},
        dropouts={"attn.out": "attn.out_drop"},
        output="final_norm",
        norm_place="before",
    )
)
register(
    Arch(
        model_type="gpt2",
        layers="h",
        sites={
            "attn.q": "attn.c_attn[0/3]",
            "attn.k": "attn.c_attn[1/3]",
            "attn.v": "attn.c_attn[2/3]",
            "attn.out": "attn.c_proj",
            "attn.norm": "ln_1",
            "ffn.in": "mlp.c_fc",
            "ffn.out": "mlp.c_proj",
            "ffn.norm": "ln_2",
        },
        outside={"final.norm": "ln_f"},
        dropouts={"attn.out": "attn.resid_dropout", "ffn.out": "mlp.dropout"},
        attention_dropouts=("attn.attn_dropout",),
        output="ln_f",
        norm_place="before",
        decoder=True,
    )
)
_llama = register(
    Arch(
        model_type="llama",
        layers="layers",
        sites={
            "attn.q": "self_attn.q_proj",
            "attn.k": "self_attn.k_proj",
            "attn.v": "self_attn.v_proj",
            "attn.out": "self_attn.o_proj",
            "attn.norm": "input_layernorm",
            "ffn.in": "mlp.up_proj",
            "ffn.gate": "mlp.gate_proj",
            "ffn.out": "mlp.down_proj",
            "ffn.norm": "post_attention_layernorm",
        },
        outside={"final.norm": "norm"},
        output="norm",
        norm_place="before",
        norm_kind="rms",
        decoder=True,
    )
)
register(replace(_llama, model_type="qwen2"))
