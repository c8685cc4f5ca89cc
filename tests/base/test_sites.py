"""Sites: a row checked against a model, choosing layers, choosing sites."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from inlay.base import arch
from inlay.base.shapes import sites_of
from inlay.base.sites import Sites, resolve
from inlay.errors import ArchError, SpecError


@functools.cache
def bert() -> nn.Module:
    return tiny.model("bert")


def sites() -> Sites:
    return resolve(bert(), arch.find("bert"))


def row(**changes: Any) -> arch.Arch:
    """BERT's row with one thing changed; mappings are merged."""
    bert_row = arch.find("bert")
    merged = {k: {**getattr(bert_row, k), **v} if isinstance(v, dict) else v for k, v in changes.items()}
    return replace(bert_row, **merged)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", (0, 1, 2)),
        ("0", (0,)),
        ("2", (2,)),
        ("0-1", (0, 1)),
        ("1-1", (1,)),
        ("0-2", (0, 1, 2)),
        ("top1", (2,)),
        ("top3", (0, 1, 2)),
        ("0+2", (0, 2)),
        ("2+0", (0, 2)),
        ("top2+0-1", (0, 1, 2)),
        (" 0 + top1 ", (0, 2)),
    ],
)
def test_layers_are_chosen_by_number_span_top_and_sum(text: str, expected: tuple[int, ...]):
    assert sites().choose_layers(text) == expected


@pytest.mark.parametrize("text", ["", "some", "top", "top-1", "-1", "1-", "0,1", "0++1", "+", "1.0", "0-1-2", "0+all"])
def test_layers_that_cannot_be_read_are_refused_with_the_grammar(text: str):
    with pytest.raises(SpecError) as caught:
        sites().choose_layers(text)
    assert str(caught.value) == (f"layers={text} is not valid: expected all, 3, 4-11, top3, or several joined by +")


@pytest.mark.parametrize("text", ["3", "0-3", "2-1", "top0", "top4", "0+3", "7-9"])
def test_layers_that_the_model_lacks_are_refused_with_those_it_has(text: str):
    with pytest.raises(SpecError) as caught:
        sites().choose_layers(text)
    assert str(caught.value) == f"layers={text} is out of range: this model has layers 0 to 2"


def test_select_takes_these_kinds_in_these_layers():
    found = sites().select(("attn.v", "attn.q"), (0, 2))
    assert [site.name for site in found] == [f"layers.{i}.attn.{kind}" for i in (0, 2) for kind in "qv"]
    assert sites().select((), (0,)) == []
    assert sites().select(("attn.q",), ()) == []


def test_select_takes_sites_outside_the_layers_whatever_the_layers():
    assert [site.name for site in sites().select(("pooler", "ffn.in"), (1,))] == ["layers.1.ffn.in", "pooler"]


def test_selecting_an_unknown_site_names_the_nearest_and_all():
    with pytest.raises(SpecError) as caught:
        sites().select(("attn.q", "atn.out"), (0,))
    assert "bert has no site 'atn.out'. Did you mean attn.out" in str(caught.value)
    assert str(caught.value).endswith("Valid: " + ", ".join(sites().kinds))


def test_a_site_that_only_other_models_have_is_unknown_here():
    with pytest.raises(SpecError, match=r"bert has no site 'ffn\.gate'"):
        sites().select(("ffn.gate",), (0,))


def test_at_finds_one_site_or_none():
    found = sites()
    assert found.at("ffn.out", 1).name == "layers.1.ffn.out"
    assert found.at("ffn.out", 1).path == "encoder.layer.1.output.dense"
    assert (found.at("ffn.out", 1).d_in, found.at("ffn.out", 1).d_out) == (24, 16)
    assert found.at("pooler").name == "pooler"
    assert found.at("ffn.out", 3) is None
    assert found.at("ffn.out") is None
    assert found.at("final.norm") is None


def test_a_models_shape_is_known():
    found = sites()
    assert (found.hidden, found.layers, found.depth) == (16, 3, 3)
    assert found.size == sum(p.numel() for p in bert().parameters())
    assert len(list(found)) == 3 * 8 + 2


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_every_site_is_a_leaf_with_the_widths_it_says(name: str):
    model = tiny.model(name)
    found = resolve(model, arch.find(name))
    assert len({site.name for site in found}) == len(list(found))
    columns: dict[str, list[tuple[int, int]]] = {}
    for site in found:
        leaf = model.get_submodule(site.path)
        x = torch.randn(2, site.d_in)
        width = leaf(x).shape[-1]
        assert site.bias == (getattr(leaf, "bias", None) is not None)
        assert (site.norm is not None) == site.kind.endswith("norm")
        if site.columns is None:
            assert site.d_out == width
        else:
            assert site.d_out == site.columns[1] - site.columns[0]
            columns.setdefault(f"{site.path} {width}", []).append(site.columns)
        if site.dropout is not None:
            assert model.get_submodule(site.dropout) is not None
    for path, slices in columns.items():  # the slices of a fused projection cover it without overlap
        ends = [0, *(end for _, end in sorted(slices))]
        assert sorted(slices) == list(itertools.pairwise(ends))
        assert ends[-1] == int(path.split()[1])


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        ({"sites": {"attn.q": "attention.self.qury"}}, "encoder.layer.0.attention.self.qury", "site attn.q"),
        ({"sites": {"ffn.norm": "output.Norm"}}, "encoder.layer.0.output.Norm", "site ffn.norm"),
        ({"outside": {"embed.norm": "embedding.LayerNorm"}}, "embedding.LayerNorm", "site embed.norm"),
        ({"outside": {"final.norm": "norm"}}, "norm", "site final.norm"),
        ({"dropouts": {"ffn.out": "output.drop"}}, "encoder.layer.0.output.drop", "dropout of ffn.out"),
        ({"layers": "encoder.layers"}, "encoder.layers", "list of layers"),
        ({"layers": "encoder"}, "encoder", "list of layers"),
        ({"output": "encodr"}, "encodr", "output"),
        ({"sites": {"attn.norm": "attention.output.dense"}}, "encoder.layer.0.attention.output.dense", "not a norm"),
    ],
)
def test_a_row_with_a_wrong_path_names_it(changes: dict[str, Any], path: str, what: str):
    with pytest.raises(ArchError) as caught:
        resolve(bert(), row(**changes))
    assert "bert: " in str(caught.value)
    assert repr(path) in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize("path", ["attention.self", "attention.output.dropout", "attention.output.LayerNorm"])
def test_a_row_whose_path_is_not_a_projection_names_it(path: str):
    with pytest.raises(ArchError, match=f"encoder.layer.0.{path}"):
        resolve(bert(), row(sites={"attn.q": path}))


@pytest.mark.parametrize("part", ["[0/3", "[0]", "[3/3]", "[0/0]", "[0/5]", "[a/3]"])
def test_a_row_with_a_wrong_slice_names_it(part: str):
    model, gpt2 = tiny.model("gpt2"), arch.find("gpt2")
    wrong = replace(gpt2, sites={**gpt2.sites, "attn.q": f"attn.c_attn{part}"})
    with pytest.raises(ArchError, match=r"attn\.c_attn"):
        resolve(model, wrong)


def test_an_optional_site_may_be_missing():
    model = tiny.model("bert")
    model.pooler = None
    found = resolve(model, arch.find("bert"))
    assert found.at("pooler") is None
    assert "pooler" not in found.kinds
    with pytest.raises(ArchError, match=r"'pooler\.dense' \(site pooler\)"):
        resolve(model, row(optional=()))


def test_a_layer_that_is_called_often_is_one_layer_of_sites():
    found = resolve(tiny.model("albert"), arch.find("albert"))
    assert (found.layers, found.depth) == (1, 3)
    assert found.choose_layers("all") == (0,)
    with pytest.raises(SpecError, match="layers 0 to 0"):
        found.choose_layers("1")


def test_only_shared_attention_keys_need_a_pass_of_their_own():
    deberta = arch.find("deberta-v2")
    assert resolve(tiny.model("deberta-v2"), deberta).single_slot == {"attn.q", "attn.k"}
    assert resolve(tiny.model("deberta-v2", share_att_key=False), deberta).single_slot == frozenset()


def test_a_sites_option():
    base = sites_of("bert-base")
    found = base.projections("attn.q + ffn.out", "top2")
    assert [site.name for site in found] == [f"layers.{i}.{kind}" for i in (10, 11) for kind in ("attn.q", "ffn.out")]
    with pytest.raises(SpecError, match=r"sites=attn\.q\+attn\.q names a site twice"):
        base.projections("attn.q+attn.q", "all")
    with pytest.raises(SpecError, match=r"attn\.norm is a norm, not a projection\. Valid: attn\.k, .*, pooler$"):
        base.projections("attn.q+attn.norm", "all")
    with pytest.raises(SpecError, match=r"bert has no site 'attn\.w'"):
        base.projections("attn.w", "all")
