"""Every head against plain torch, alone and mixed in one batch, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import SpecError
from inlay.heads.head import KINDS, Head, head_part

BATCH = tiny.batch(7)


def plain(kind: str, h: Tensor, p: dict[str, Tensor]) -> Tensor:
    """A head as its definition has it."""
    if kind == "transform":
        inner = F.gelu(h @ p["head.dense"] + p["head.dense_bias"])
        return F.layer_norm(inner, inner.shape[-1:], 1 + p["head.scale"], p["head.shift"], eps=1e-12)
    if kind == "states":
        return h
    if kind != "linear":
        inner = h @ p["head.dense"] + p["head.dense_bias"]
        h = {"tanh2": torch.tanh, "mlp": F.gelu, "relu2": F.relu}[kind](inner)
    return h @ p["head.weight"] + p["head.bias"]


@pytest.fixture
def host() -> Any:
    """One adapter per kind of head, all shaken; and two of the same kind that differ."""
    made = tiny.host()
    for seed, kind in enumerate((*KINDS, "transform")):
        name = kind if kind not in made else "transform again"
        labels, task = (["word"], "mlm") if kind == "transform" else (3, None)
        made.add(name, "adapterbias", labels=labels, task=task, head=kind, pool="cls", seed=seed)
        tiny.shake(made, name, seed)
    return made


def rows_of(host: Any, names: list[str]) -> list[Tensor]:
    states = host.hidden(BATCH, names).rows()
    return [rows if n.startswith("transform") else rows[0] for n, rows in zip(names, states, strict=True)]


def test_all_heads_in_one_batch(host):
    names = ["linear", "transform", "tanh2", "transform again", "mlp", "relu2", "states"]
    assert set(names) == set(host.names)
    with torch.no_grad():
        found = host.logits(BATCH, names)
        for name, logits, h in zip(names, found, rows_of(host, names), strict=True):
            tiny.assert_close(logits, plain(name.split()[0], h, host.read(name)).to(logits.dtype), name)


def test_another_adapters_head_would_be_noticed(host):
    with torch.no_grad():
        one, other = (host.logits(BATCH, [name] * 7)[1] for name in ("transform", "transform again"))
    assert (one - other).abs().max() > 0.1


@pytest.mark.skipif(not tiny.EXACT, reason="gradients are compared to many digits")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "states"])
def test_gradients(host, kind):
    names = [kind] * 7
    leaves = {n: v.clone().requires_grad_() for n, v in host.read(kind).items() if n.startswith("head")}
    with torch.no_grad():
        inputs = rows_of(host, names)
    torch.stack([plain(kind, h, leaves).square().sum() for h in inputs]).sum().backward()
    torch.stack([row.square().sum() for row in host.logits(BATCH, names)]).sum().backward()
    found = host.gradients(kind)
    for name, leaf in leaves.items():
        tiny.assert_close(found[name], leaf.grad, name, gradient=True)


def test_a_transform_is_never_padded():
    assert Head("transform", 11).bucketed().labels == 11
    assert Head("linear", 11).bucketed().labels > 11


def test_a_fresh_transform_leaves_the_norm_alone():
    made = tiny.host()
    made.add("m", "adapterbias", labels=["word"], task="mlm")
    with torch.no_grad():
        state = made.logits(BATCH, ["m"] * 7)[2].float()
    torch.testing.assert_close(state.mean(-1), torch.zeros(len(state), device=state.device), atol=2e-2, rtol=0)
    torch.testing.assert_close(
        state.var(-1, unbiased=False), torch.ones(len(state), device=state.device), rtol=0.05, atol=0
    )


def test_the_transform_is_as_wide_as_the_word_embeddings():
    made = tiny.host("electra")  # embeddings of 8, hidden states of 16
    made.add("m", "adapterbias", labels=["word"], task="mlm")
    assert made.read("m")["head.dense"].shape == (16, 8)
    assert made.logits(BATCH, ["m"] * 7)[0].shape[-1] == 8


def test_unknown_heads_and_label_counts():
    with pytest.raises(SpecError, match="Did you mean linear"):
        head_part("liner", 2, 16)
    with pytest.raises(SpecError, match="at least one label"):
        head_part("linear", 0, 16)
