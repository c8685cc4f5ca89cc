"""A run's own dropout in front of its head, beside runs that have another one or the base's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from training import work

import inlay
from inlay.bank.noise import keep_lanes, number
from inlay.kernels.shared import lane_cut

KEY = (3, 9)


def host_of(**changes: Any) -> inlay.Host:
    host = tiny.host("bert", **changes)
    for i, name in enumerate("abc"):
        host.add(name, "lora:rank=2", labels=3, seed=i, pool="cls")
        tiny.shake(host, name)
    return host


def logits(host: inlay.Host, names: str, own: dict[str, float], rows: list[int] | None = None) -> list[torch.Tensor]:
    batch = tiny.batch(6)
    keys = replace(host.keys(dict.fromkeys(names, KEY)), head_dropout={host.slot(n): p for n, p in own.items()})
    with torch.no_grad():
        return host.logits(batch if rows is None else batch.take(rows), list(names), keys)


def test_it_is_dropout_of_the_pooled_row():
    host = host_of(hidden_dropout_prob=0.0)
    batch, names = tiny.batch(6), ["a"] * 6
    with torch.no_grad():
        first = torch.stack([row[0] for row in host.hidden(batch, names, host.keys({"a": KEY})).rows()])
    tensors = host.adapter("a").tensors
    rows = torch.arange(6, dtype=torch.int32)
    key = torch.full((6,), number(*KEY), dtype=torch.int32)
    lanes = keep_lanes(key, rows, host.forward.wiring.head_place.cpu(), first.shape[1])
    dropped = first.cpu().float() * (lanes >= lane_cut(0.4)) / 0.6
    expected = dropped @ tensors["head.weight"].float() + tensors["head.bias"].float()
    tiny.assert_close(torch.stack(logits(host, "aaaaaa", {"a": 0.4})).cpu(), expected)
    assert 0.2 < (dropped == 0).float().mean() < 0.6


@pytest.mark.parametrize(
    "own", [{"a": 0.5}, {"a": 0.5, "b": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}, {"b": 0.2, "c": 0.7}]
)
def test_every_run_has_its_own(own: dict[str, float]):
    host = host_of(hidden_dropout_prob=0.1)
    mixed = logits(host, "aabbcc", own)
    for name, rows in {"a": [0, 1], "b": [2, 3], "c": [4, 5]}.items():
        alone = logits(host, name * 2, {n: p for n, p in own.items() if n == name}, rows)
        for place, one in zip(rows, alone, strict=True):
            tiny.assert_close(mixed[place], one)
        usual = logits(host, name * 2, {}, rows)
        assert torch.equal(torch.stack(alone), torch.stack(usual)) is (name not in own)


def test_a_run_trains_with_it_side_by_side_as_alone():
    runs = [work.run(seed=i, head_dropout=p, epochs=1) for i, p in enumerate((None, 0.5, 0.0))]
    for run, found in zip(runs, inlay.train(work.host(), runs), strict=True):
        assert found.losses == pytest.approx(inlay.train(work.host(), run).losses, abs=1e-4)
    usual, other = (inlay.train(work.host(), work.run(head_dropout=p, epochs=1)).losses for p in (None, 0.5))
    assert usual != pytest.approx(other, abs=1e-3)


def test_for_tags_too():
    losses = [
        inlay.train(work.host(), work.run(work.entities(12), head_dropout=p, epochs=1, val_size=4)).losses
        for p in (0.0, 0.5)
    ]
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)
