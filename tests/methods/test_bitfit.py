"""BitFit's subsets: the chosen biases train, and no others."""

from __future__ import annotations

import pytest
import tiny
import torch

import inlay
from inlay.errors import SpecError


def test_only_the_chosen_biases_change_a_model():
    host = tiny.host()
    host.add("a", "bitfit:sites=attn.q+ffn.in,layers=top2")
    moved = {
        part.site.name for part in inlay.parse_method("bitfit:sites=attn.q+ffn.in,layers=top2").parts(host.base.sites)
    }
    assert moved == {f"layers.{i}.{kind}" for i in (1, 2) for kind in ("attn.q", "ffn.in")}
    tiny.shake(host, "a")
    own = tiny.model("bert")
    with torch.no_grad():
        for name, tensor in host.adapter("a").tensors.items():
            layer = own.encoder.layer[int(name.split(".")[1])]
            (layer.attention.self.query if "attn.q" in name else layer.intermediate.dense).bias += tensor
        expected = own(input_ids=torch.tensor([[5, 6, 7]], device=tiny.DEVICE)).last_hidden_state[0]
        found = host.hidden(inlay.Batch.of([[5, 6, 7]]), ["a"]).states
    tiny.assert_close(found, expected)


@pytest.mark.parametrize(
    ("arch", "sites", "reason"),
    [
        ("bert", "attn.qq", r"bert has no bias to train at 'attn.qq'. Did you mean attn.q"),
        ("bert", "pooler", r"no bias to train at 'pooler'"),
        ("bert", "attn.q+attn.q", r"names a site twice"),
        ("qwen2", "attn.q+ffn.in", r"qwen2 has no bias to train at 'ffn.in'.*Valid: attn.k, attn.q, attn.v"),
    ],
)
def test_a_bias_that_is_not_there_is_refused(arch, sites, reason):
    with pytest.raises(SpecError, match=reason):
        tiny.host(arch).add("a", f"bitfit:sites={sites}")
