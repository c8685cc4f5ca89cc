"""Lower layers that no run changes are run once per row, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import inlay
from inlay.data.batch import Batch
from inlay.engine.watch import states_below
from inlay.errors import SlotError
from inlay.training import cache as caching

ROWS = [
    {"text": f"the {a} was {b} {c}", "label": b}
    for a in ("film", "book", "soup")
    for b in ("good", "bad")
    for c in "xyz"
]
SETTINGS = {"data": ROWS, "epochs": 3, "batch_size": 4, "val_size": 4, "dropout": False}
PACKABLE = [name for name in tiny.CONFIGS if name not in ("deberta-v2", "albert")]


def losses(monkeypatch, specs, cached, host=None, **changes):
    used = []
    below = caching.Cache._compute
    monkeypatch.setattr(
        caching.Cache, "_compute", lambda self, rows, layer: used.append(layer) or below(self, rows, layer)
    )
    monkeypatch.setattr(caching, "_ROOM", {"cpu": 1 << 30, "cuda": 1 << 30} if cached else {})
    runs = [inlay.Run(method=spec, seed=i, **{**SETTINGS, **changes}) for i, spec in enumerate(specs)]
    found = inlay.train(host or tiny.text_host(), runs)
    assert all(result.ok for result in found), [result.problem for result in found]
    return [result.losses for result in found], used


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("specs", "layers"),
    [
        (["houlsby:size=4,layers=top1"], [2]),
        (["houlsby:size=4,layers=top1", "lora:rank=2,layers=1-2"], [1, 1]),
        (["bitfit:layers=top2", "adapterbias:layers=top1", "finetune:top=1"], [1, 1, 2]),
        (["finetune", "finetune:top=1", "finetune:top=2"], [2, 1]),
        (["houlsby:size=4,layers=top1,mixout=0.5"], [2]),
    ],
)
def test_the_losses_are_the_same(monkeypatch, specs, layers):
    with_cache, used = losses(monkeypatch, specs, True)
    without, none = losses(monkeypatch, specs, False)
    assert used == layers
    assert not none
    for mine, theirs in zip(with_cache, without, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "specs", [["houlsby:size=4"], ["frozen"], ["norms"], ["finetune"], ["houlsby:layers=top1", "bitfit"]]
)
def test_a_run_that_needs_all_layers_has_them(monkeypatch, specs):
    assert not losses(monkeypatch, specs, True)[1]


def test_dropout_needs_all_layers(monkeypatch):
    assert not losses(monkeypatch, ["houlsby:size=4,layers=top1"], True, dropout=True)[1]


def test_a_stale_state_would_be_noticed(monkeypatch):
    """Positive control: states of other rows give other losses."""
    spec = ["houlsby:size=4,layers=top1"]
    right, _ = losses(monkeypatch, spec, True)
    monkeypatch.setattr(caching, "states_below", lambda *given: states_below(*given).roll(1, 0))
    wrong, _ = losses(monkeypatch, spec, True)
    assert wrong[0] != pytest.approx(right[0], abs=1e-4)


@pytest.mark.parametrize("name", PACKABLE)
def test_a_batch_may_begin_at_any_layer(name):
    host = tiny.host(name)
    host.add("a", "lora:rank=2,layers=top1,sites=ffn.out", labels=3, pool="mean")
    tiny.shake(host, "a")
    batch = tiny.batch(5)
    whole = host.logits(batch, ["a"] * 5)
    for layer in (1, 2):
        begun = replace(batch, states=states_below(host.forward, batch, layer), layer=layer)
        order = [3, 0, 1, 4, 2]
        for mine, i in zip(host.logits(begun.take(order), ["a"] * 5), order, strict=True):
            tiny.assert_close(mine, whole[i])


def test_an_adapter_below_is_refused():
    host = tiny.host()
    host.add("low", "lora:rank=2,layers=1", labels=2)
    batch = tiny.batch(2)
    begun = Batch(batch.ids, batch.lengths, None, states_below(host.forward, batch, 2), 2)
    with pytest.raises(SlotError, match="changes a lower one"):
        host.logits(begun, ["low", "low"])
    with torch.no_grad(), pytest.raises(inlay.InlayError, match="packed"):
        host.logits(begun, ["low", "low"], packed=False)
