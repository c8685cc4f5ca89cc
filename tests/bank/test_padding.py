"""Sizes are padded to a bucket; that must never show."""

from __future__ import annotations

import pytest
import tiny
import torch

import inlay

SPECS = ["houlsby:size=5", "houlsby:size=13,activation=swish,depth=2,inner_norm=true", "lora:rank=3", "adapterbias"]


def _padding(host: inlay.Host, name: str) -> list[torch.Tensor]:
    """Everything in an adapter's entries beyond its true sizes."""
    bank, slot = host.forward.bank, host.slot(name)
    out = []
    for tensor in bank.slot(slot).params:
        stack, index = bank.place(slot, tensor)
        outside = torch.ones_like(stack[index[0]], dtype=torch.bool)
        outside[index[1:]] = False
        out.append(stack[index[0]][outside])
    return out


def _loss(target, logits):
    return torch.nn.functional.cross_entropy(torch.stack(logits), target)


@pytest.mark.full
@pytest.mark.parametrize("spec", SPECS)
def test_zero_padding_is_exact_over_50_optimiser_steps(spec):
    batch, target = tiny.batch(8), torch.tensor([0, 1, 2] * 2 + [0, 1])
    host = tiny.host()
    host.add("a", spec, labels=3)
    tiny.shake(host, "a", scale=0.1)
    start = host.adapter("a")
    # the oracle: the same adapter without stacks or padding, trained by the same optimiser
    model = tiny.model("bert")
    attached = inlay.attach(model, spec)
    plain = {n: t for n, t in attached.tensors.items() if isinstance(t, torch.nn.Parameter)}
    head = {n: torch.nn.Parameter(start.tensors[n].clone()) for n in ("head.weight", "head.bias")}
    with torch.no_grad():
        for n, t in plain.items():
            t.copy_(start.tensors[n])
    options = {"lr": 1e-2, "weight_decay": 0.1}
    ours = torch.optim.AdamW(host.parameters(), **options)
    theirs = torch.optim.AdamW([*plain.values(), *head.values()], **options)
    rows = tiny.rows_of(batch)
    for _ in range(50):
        ours.zero_grad()
        loss = _loss(target, host.logits(batch, ["a"] * 8))
        loss.backward()
        ours.step()
        theirs.zero_grad()
        first = [model(input_ids=row[None]).last_hidden_state[0, 0] for row in rows]
        expected = _loss(target, [h @ head["head.weight"] + head["head.bias"] for h in first])
        expected.backward()
        theirs.step()
        assert all((p == 0).all() for p in _padding(host, "a"))
        assert abs(loss.item() - expected.item()) < 1e-4
    assert loss.item() < 0.7 * _loss(target, [torch.zeros(3)] * 8).item(), "it must have learned something"
    trained = host.adapter("a").tensors
    for n, t in {**plain, **head}.items():
        tiny.assert_close(trained[n], t.detach(), n, gradient=True)
    assert any(p.numel() for p in _padding(host, "a")), "there must be padding to look at"


@pytest.mark.parametrize("spec", SPECS)
def test_outputs_do_not_change_by_one_bit_when_wider_neighbours_are_loaded(spec):
    host, batch = tiny.host(), tiny.batch(6)
    host.add("a", spec, labels=2)
    tiny.shake(host, "a")
    before = host.logits(batch, ["a"] * 6)
    for i, wider in enumerate(["houlsby:size=256", "houlsby:size=7", "lora:rank=64", spec, "adapterbias", "norms"] * 3):
        host.add(f"n{i}", wider, labels=2 + 20 * i)
        tiny.shake(host, f"n{i}", seed=i)
    after = host.logits(batch, ["a"] * 6)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    for i in range(0, 18, 2):
        host.unload(f"n{i}")
    assert all(torch.equal(x, y) for x, y in zip(before, host.logits(batch, ["a"] * 6), strict=True))
    assert not torch.equal(before[0], host.logits(batch, ["n1"] * 6)[0][:2])
