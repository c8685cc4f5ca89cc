"""houlsby:normed=true against a plain model with hooks: LN(s + B(LN(s)))."""

from __future__ import annotations

import pytest
import tiny
import torch
import torch.nn.functional as F

import inlay
from inlay.errors import SpecError

NORMS = {"attn": "attention.output.LayerNorm", "ffn": "output.LayerNorm"}


@pytest.mark.parametrize(("where", "places"), [("ffn", ["ffn"]), ("attn", ["attn"]), ("both", ["attn", "ffn"])])
def test_it_reads_the_norm_and_is_added_before_it(where, places):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", f"houlsby:size=5,normed=true,where={where},activation=tanh,layers=0+2")
    tiny.shake(host, "a")
    tensors = host.adapter("a").tensors
    model, batch = tiny.model("bert"), tiny.batch(3, seed=2)
    for layer in (0, 2):
        for place in places:
            norm = model.get_submodule(f"encoder.layer.{layer}.{NORMS[place]}")
            own = {n: tensors[f"layers.{layer}.{place}.norm.{n}"] for n in ("down", "down_bias", "up", "up_bias")}

            def moved(module, args, p=own):
                read = F.layer_norm(args[0], module.normalized_shape, module.weight, module.bias, module.eps)
                return args[0] + torch.tanh(read @ p["down"] + p["down_bias"]) @ p["up"] + p["up_bias"]

            norm.register_forward_pre_hook(moved)
    states = host.hidden(batch, ["a"] * 3).rows()
    for ids, state in zip(tiny.rows_of(batch), states, strict=True):
        with torch.no_grad():
            expected = model(input_ids=ids[None]).last_hidden_state[0]
        tiny.assert_close(state, expected)
    assert (states[1] - host.hidden(batch, [None] * 3).rows()[1]).abs().max() > 0.05
    assert len(tensors) == 4 * 2 * len(places), "the norms themselves stay as they are"


def test_rows_of_others_are_not_touched_even_in_place():
    host = inlay.Host(tiny.model("bert"))
    for name in ("a", "b"):
        host.add(name, "houlsby:size=5,normed=true")
        tiny.shake(host, name, seed=ord(name))
    batch = tiny.batch(3, seed=2)
    with torch.no_grad():
        bare = host.hidden(batch, [None] * 3).rows()
        mixed = host.hidden(batch, ["a", None, "b"]).rows()
    tiny.assert_close(mixed[1], bare[1])
    assert (mixed[2] - bare[2]).abs().max() > 0.05


@pytest.mark.parametrize("more", ["parallel=true", "norms=true"])
def test_what_cannot_be_combined_is_refused(more):
    with pytest.raises(SpecError, match=f"{more} is not valid with normed=true"):
        inlay.parse_method(f"houlsby:normed=true,{more}")
