"""A method that someone derived from one of ours computes something else, and is not written as if it were ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import tiny
import torch
from torch import Tensor

import inlay
from inlay.bank.delta import Part, Signal, Tensors
from inlay.bank.route import Route
from inlay.base.sites import Sites
from inlay.errors import AdapterError
from inlay.interop import adapterhub, peft
from inlay.interop.merge import merge
from inlay.methods.adapterbias import AdapterBias, TokenShift
from inlay.methods.houlsby import Houlsby
from inlay.methods.lora import Lora, LowRank
from inlay.registry import methods


@dataclass(frozen=True)
class Halved(LowRank):
    """Stands for any rule of its own, such as DoRA's."""

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        return super().difference(route, p, at) / 2


@dataclass(frozen=True, kw_only=True)
class HalvedLora(Lora):
    """LoRA's options and tensors, another rule."""

    def parts(self, sites: Sites) -> list[Part]:
        return [Part(p.site, Halved(p.delta.rank, p.delta.scale), p.rows) for p in super().parts(sites)]


@dataclass(frozen=True, kw_only=True)
class OtherHoulsby(Houlsby):
    """Houlsby's options."""


@dataclass(frozen=True)
class Doubled(TokenShift):
    """A shift with a rule of its own."""

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        return super().difference(route, p, at) * 2


@dataclass(frozen=True, kw_only=True)
class DoubledBias(AdapterBias):
    """AdapterBias's options."""

    def parts(self, sites: Sites) -> list[Part]:
        found = super().parts(sites)
        return [
            Part(p.site, Doubled(d.alpha, d.gate, d.open_at_start, d.strength), p.rows)
            if isinstance(d := p.delta, TokenShift)
            else p
            for p in found
        ]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    known = {"halvedlora": HalvedLora, "otherhoulsby": OtherHoulsby, "doubledbias": DoubledBias}
    for name, method in known.items():
        methods.register(name)(method)
    yield
    for name in known:
        methods._classes.pop(name)


def host_with(spec: str) -> inlay.Host:
    host = tiny.text_host("bert")
    host.add("a", spec, labels=["x", "y"], pool="pooler")
    tiny.shake(host, "a")
    return host


def test_peft_gets_lora_itself_alone(tmp_path):
    host = host_with("halvedlora:rank=2")
    with pytest.raises(AdapterError, match="peft has no halvedlora adapters"):
        peft.write(host.adapter("a"), host.base, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("spec", ["halvedlora:rank=2", "otherhoulsby:size=4,norms=false"])
def test_adapterhub_gets_what_it_has_alone(spec, tmp_path):
    host = host_with(spec)
    with pytest.raises(AdapterError, match="AdapterHub has no"):
        adapterhub.write(host.adapter("a"), host.base, tmp_path / "a")


@pytest.mark.parametrize("spec", ["halvedlora:rank=2", "doubledbias:alpha=false"])
def test_merging_knows_no_rule_for_them(spec, tmp_path):
    host = host_with(spec)
    with pytest.raises(AdapterError, match="cannot be merged"):
        merge(host, "a", tmp_path / "a")


def test_their_own_rule_is_what_runs():
    """Their groups are their own, not those of the class they derive from."""
    host = host_with("doubledbias")
    host.load(host.adapter("a"), "b")
    plain = inlay.Adapter(**{**vars(host.adapter("a")), "method": "adapterbias"})
    host.load(plain, "c")
    a, b, c = host.logits(host.batch(["a good film"] * 3), ["a", "b", "c"])
    assert torch.equal(a, b)
    assert (a - c).abs().max() > 1e-3
