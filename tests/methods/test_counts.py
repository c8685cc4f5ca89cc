"""Parameter counts: the papers' formulas and figures, on meta tensors and in a real tiny model."""

from __future__ import annotations

import functools

import pytest
import tiny
import torch
from transformers import BertConfig, BertModel

import inlay
from inlay.bank.delta import params_of
from inlay.base.shapes import sites_of
from inlay.heads.head import head_part

D, M, L = 768, 64, 12
ADAPTER = 2 * M * D + D + M
"""Houlsby et al., section 2.1."""
LAYER = 4 * (D * D + D) + 2 * (D * 4 * D) + 4 * D + D + 2 * 2 * D
"""Attention's four projections, the feed-forward's two, two norms."""

BERT_BASE = {
    "houlsby": 2_379_264 + 36_864,  # two norms per layer
    "houlsby:norms=true": 2_416_128,
    "houlsby:norms=false": 2 * L * ADAPTER,
    "houlsby:size=64,norms=false": 2_379_264,
    "houlsby:share=sublayers": 1_189_632,
    "houlsby:share=sublayers,norms=true": 1_189_632 + 36_864,
    "houlsby:share=3": 396_544,
    "houlsby:share=5,norms=false": 3 * ADAPTER,
    "houlsby:where=attn,norms=false": 1_189_632,
    "houlsby:where=ffn,norms=false": 1_189_632,
    "houlsby:where=ffn": 1_189_632 + 36_864,
    "houlsby:parallel=true,norms=false": 2_379_264,
    "houlsby:depth=2,norms=false": 2_379_264 + 2 * L * (M * M + M),
    "houlsby:inner_norm=true,norms=false": 2_379_264 + 2 * L * 2 * D,
    "houlsby:size=8,norms=false": 2 * L * (2 * 8 * D + D + 8),
    "houlsby:layers=top3": 3 * (2 * ADAPTER + 4 * D),
    "adapterbias": 64_524,
    "adapterbias:share=none,alpha=true": L * (D + (4 * D + 1) + 2 * D),  # v, alpha's layer, the norm after it
    "adapterbias:share=v": 56_076,
    "adapterbias:share=alpha": 30_721,
    "adapterbias:share=both": 22_273,
    "adapterbias:alpha=false": 27_648,
    "adapterbias:l0=0.01": 64_524,
    "bitfit": 101_376,
    "bitfit:layers=0-11": L * (4 * D + 4 * D + D + 2 * D),  # attention, the feed-forward's two, two norms
    "bitfit:sites=attn.q+ffn.in": L * (D + 4 * D),  # Ben Zaken et al.'s subset: b_q and b_m2
    "bitfit:sites=attn.norm+ffn.norm": L * 2 * D,
    "norms": 38_400,
    "lora": 294_912,
    "lora:rank=4,alpha=1,sites=ffn.in": L * 4 * (D + 4 * D),
    "finetune": 109_482_240,
    "finetune:top=12": 109_482_240,
    "finetune:top=1": LAYER + D * D + D,
    "diffprune": 547_411,
    "diffprune:target=0.005": 547_411,
    "diffprune:target=1": 109_482_240,
    "diffprune:structured=true": 547_411,
    "frozen": 13,
}
BERT_LARGE = {
    "adapterbias": 172_056,
    "bitfit": 270_336,
    "bitfit:sites=attn.q+ffn.in": 122_880,  # 0.04 % of BERT-large, as the paper has it
    "lora:rank=4": 393_216,
    "norms": 2 * 1024 * (2 * 24 + 1),
    "houlsby:norms=false": 24 * 2 * (2 * 64 * 1024 + 1024 + 64),
    "frozen": 25,
}
CASES = [("bert-base", *case) for case in BERT_BASE.items()] + [("bert-large", *case) for case in BERT_LARGE.items()]

sites = functools.cache(sites_of)


@pytest.mark.parametrize(("shape", "spec", "expected"), CASES)
def test_count_is_the_papers(shape, spec, expected):
    assert inlay.parse_method(spec).count(sites(shape)) == expected


def test_finetuning_trains_every_parameter_of_a_bert_with_pooler():
    with torch.device("meta"):
        model = BertModel(BertConfig())
    assert inlay.parse_method("finetune").count(sites("bert-base")) == sum(p.numel() for p in model.parameters())
    top = sum(p.numel() for part in (model.encoder.layer[-1], model.pooler) for p in part.parameters())
    assert inlay.parse_method("finetune:top=1").count(sites("bert-base")) == top


@pytest.mark.parametrize("top", [1, 2, 11])
def test_finetuning_less_than_all_layers_leaves_the_embeddings_out(top):
    method = inlay.parse_method(f"finetune:top={top}")
    assert method.count(sites("bert-base")) == top * LAYER + D * D + D
    assert set(method.by_site(sites("bert-base"))) == {f"layers.{i}" for i in range(12 - top, 12)} | {"pooler"}


@pytest.mark.parametrize(("shape", "layers"), [("bert-base", 12), ("bert-large", 24)])
def test_structured_diff_pruning_has_a_group_for_each_matrix_and_vector(shape, layers):
    """393 in BERT-large (Guo et al. 2021), the two of the head included."""
    plain, structured = (inlay.parse_method(f"diffprune:structured={s}") for s in ("false", "true"))
    groups = sites(shape).parameters
    assert len(groups) == 5 + 16 * layers + 2
    assert shape != "bert-large" or len(groups) + 2 == 393
    more = structured.params(sites(shape)).keys() - plain.params(sites(shape)).keys()
    assert more == {f"{name}.group.gate" for name in groups}
    assert structured.count(sites(shape)) == plain.count(sites(shape))


def test_mohebbis_not_shared_model_is_houlsby_with_norms_and_the_first_layer_of_a_tanh2_head():
    head = params_of([head_part("tanh2", 2, D)])
    first = sum(head[name].numel for name in ("head.dense", "head.dense_bias"))
    assert first == 590_592
    assert inlay.parse_method("houlsby").count(sites("bert-base")) + first == 3_006_720
    assert sum(param.numel for param in head.values()) == 590_592 + 2 * D + 2


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "houlsby",
            {"attn.out": L * ADAPTER, "ffn.out": L * ADAPTER, "attn.norm": L * 2 * D, "ffn.norm": L * 2 * D},
        ),
        ("houlsby:share=sublayers", {"attn.out+ffn.out": L * ADAPTER}),
        ("adapterbias", {"ffn.out": L * (5 * D + 1), "ffn.norm": L * 2 * D}),
        ("lora", {"attn.q": L * 16 * D, "attn.v": L * 16 * D}),
        ("norms", {"embed.norm": 2 * D, "attn.norm": L * 2 * D, "ffn.norm": L * 2 * D}),
    ],
)
def test_by_site_says_where_the_parameters_are(spec, expected):
    assert inlay.parse_method(spec).by_site(sites("bert-base")) == expected


@pytest.mark.parametrize("spec", BERT_BASE)
def test_by_site_adds_up_to_the_tensors_that_train(spec):
    method = inlay.parse_method(spec)
    by_site = method.by_site(sites("bert-base"))
    assert sum(by_site.values()) == method.count(sites("bert-base"))
    if not spec.startswith("diffprune"):  # keeps a part of its tensors
        assert sum(by_site.values()) == sum(
            p.numel for p in method.params(sites("bert-base")).values() if p.role == "trained"
        )


TWELVE_LAYERS = {"finetune:top=12", "bitfit:layers=0-11"}
FEWER_LAYERS = ["bitfit:layers=1", "lora:layers=0", "frozen:layers=top1", "finetune:top=3"]


@pytest.mark.parametrize("spec", [*(spec for spec in BERT_BASE if spec not in TWELVE_LAYERS), *FEWER_LAYERS])
def test_a_real_adapter_trains_exactly_as_many_numbers(spec):
    host = tiny.host("bert")
    host.add("a", spec)
    method, slot = inlay.parse_method(spec), host.slot("a")
    params = method.params(host.base.sites)
    gates = {name for name, param in params.items() if param.role == "gate"}
    tensors = host.forward.bank.read(slot)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {name: p.shape for name, p in params.items()}

    hidden = host.hidden(inlay.Batch.of([[1, 2, 3]]), ["a"], host.keys({"a": (0, 0)}))
    hidden.states.square().sum().backward()
    trained = {name: g for name, g in host.gradients("a").items() if name not in gates}
    if spec.startswith("diffprune"):
        kept = host.adapter("a", finish=True).tensors
        assert sum(t.numel() for name, t in kept.items() if name.endswith("#value")) == method.count(host.base.sites)
    else:
        assert sum(tensors[name].numel() for name in trained) == method.count(host.base.sites)
        # the pooler has no part in hidden states
        assert {n for n, g in trained.items() if g is None} == {n for n in trained if n.startswith("pooler.")}
