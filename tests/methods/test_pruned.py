"""A finished diff-pruned adapter: what its positions may be is settled when it is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import inlay
from inlay.bank import sparse
from inlay.errors import AdapterError


def finished() -> tuple[inlay.Host, inlay.Adapter]:
    host = tiny.text_host("bert")
    host.add("a", "diffprune:target=0.1", labels=["x", "y"])
    tiny.shake(host, "a")
    return host, host.adapter("a", finish=True)


def test_a_pass_checks_no_positions(monkeypatch):
    """To look at numbers is to wait for the device, for every tensor of every pass."""
    host, adapter = finished()
    host.load(adapter, "b")
    wanted = host.predict([("b", "a good film")])
    monkeypatch.setattr(sparse, "decode", None)
    assert host.predict([("b", "a good film")]) == wanted
    host.logits(host.batch(["a good film"]), ["b"])[0].sum().backward()
    trained = host.forward.bank.slot(host.slot("b")).weights.parameters()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in trained)


@pytest.mark.parametrize(
    ("positions", "reason"),
    [([0, 10**7], "positions outside its"), ([-1, 2], "positions outside its"), ([3, 3], "has a position twice")],
)
def test_bad_positions_are_refused_when_it_is_loaded(positions, reason):
    host, adapter = finished()
    name = next(n for n in adapter.tensors if n.endswith(sparse.INDEX)).removesuffix(sparse.INDEX)
    bad = {name + sparse.INDEX: torch.tensor(positions, dtype=torch.int32), name + sparse.VALUE: torch.ones(2)}
    with pytest.raises(AdapterError, match=reason):
        host.load(replace(adapter, tensors={**adapter.tensors, **bad}), "b")
    assert "b" not in host
