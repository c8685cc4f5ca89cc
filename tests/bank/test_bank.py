"""The bank: adapters come and go, and no other adapter notices."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples
from torch import Tensor

from inlay.bank import ops
from inlay.bank.bank import BASE, Bank
from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, parse
from inlay.bank.gates import HardConcrete
from inlay.bank.passes import BankPass
from inlay.bank.plan import Runs
from inlay.bank.planning import owners_of, plan_runs
from inlay.bank.route import Route
from inlay.base import arch
from inlay.base.sites import Site, Sites, resolve
from inlay.errors import AdapterError, SlotError

SPECS = ["bitfit", "bitfit:layers=1", "houlsby:size=3", "houlsby:size=8,layers=top2", "lora:rank=2", "lora:alpha=4"]
GATED = "adapterbias:l0=0.5"


@functools.cache
def sites() -> Sites:
    """A tiny BERT of three layers, 16 wide."""
    return resolve(tiny.model("bert"), arch.find("bert"))


def site(name: str) -> Site:
    return next(s for s in sites() if s.name == name)


def method(spec: str) -> SlotMethod:
    found = parse(spec)
    assert isinstance(found, SlotMethod)
    return found


def values(spec: str, seed: int) -> dict[str, Tensor]:
    """Random values for all tensors of an adapter, constants too: the bank keeps whatever it is given."""
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=random) for name, p in method(spec).params(sites()).items()}


def load(bank: Bank, spec: str, seed: int = 0) -> int:
    return bank.load(method(spec).parts(sites()), values(spec, seed))


def assert_holds(bank: Bank, slot: int, spec: str, seed: int) -> None:
    """Bit for bit."""
    found, expected = bank.read(slot), values(spec, seed)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def assert_tidy(bank: Bank) -> None:
    """Entry 0 and free entries are zero, no group or mount is empty, the table of entries is that of the groups."""
    for group in bank.groups.values():
        assert group.entry_of
        assert len(set(group.entry_of.values())) == len(group.entry_of)
        assert 0 not in group.entry_of.values()
        assert group.capacity.bit_count() == 1
        free = sorted(set(range(group.capacity)) - set(group.entry_of.values()))
        for stack in group.stacks.values():
            assert len(stack) == group.capacity
            assert not stack[free].any()
    assert all(mount.slots for mounts in bank.mounts.values() for mount in mounts)
    table = np.zeros_like(bank._entries)
    for group in bank.groups.values():
        for slot, entry in group.entry_of.items():
            table[group.row, bank.columns[slot]] = entry
    assert np.array_equal(bank._entries, table)
    assert bank.columns.keys() == bank.ranks.keys() == {BASE, *bank.slots}


def runs_of(bank: Bank, slots: list[int], counts: list[int]) -> Runs[Any]:
    owners = owners_of(bank, np.array(slots))
    return plan_runs(bank, owners, np.cumsum([0, *counts])[owners.bounds], "layers", None)


def routes(bank: Bank, slots: list[int], counts: list[int]) -> list[list[list[int]]]:
    """At `ffn.out` of each layer, in one pass: for each group that acts there, the entry of every token."""
    state, out = BankPass(bank, runs_of(bank, slots, counts)), []
    for layer in range(3):
        found = [route for _, _, route in state.at(site(f"layers.{layer}.ffn.out"))]
        inside = [ops.entries(route.segments, route.tokens, bank.device).tolist() for route in found]
        spans = [route.span for route in found]
        out.append([[0] * a + row + [0] * (sum(counts) - b) for (a, b), row in zip(spans, inside, strict=True)])
    return out


@pytest.mark.parametrize("spec", [*SPECS, GATED, "adapterbias:share=both", "houlsby:share=2", "norms", "frozen"])
def test_what_is_loaded_can_be_read_back(spec: str):
    bank = Bank()
    slot = load(bank, spec, seed=3)
    assert_holds(bank, slot, spec, seed=3)
    assert_tidy(bank)


def test_reading_gives_a_copy():
    bank = Bank()
    slot = load(bank, "bitfit", seed=1)
    for tensor in bank.read(slot).values():
        tensor.zero_()
    assert_holds(bank, slot, "bitfit", seed=1)


def test_writing_is_in_place_and_touches_one_slot():
    bank = Bank()
    first, second = load(bank, "houlsby:size=3", seed=1), load(bank, "houlsby:size=5", seed=2)
    places = [stack.data_ptr() for stack in bank.parameters()]
    bank.write(first, values("houlsby:size=3", seed=7))
    assert_holds(bank, first, "houlsby:size=3", seed=7)
    assert_holds(bank, second, "houlsby:size=5", seed=2)
    assert [stack.data_ptr() for stack in bank.parameters()] == places
    assert_tidy(bank)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3)])
def test_a_tensor_of_another_shape_is_refused_and_nothing_is_written(shape: tuple[int, ...]):
    """Not even one that torch would stretch to the right shape."""
    bank, spec, name = Bank(), "houlsby:size=3", "layers.2.ffn.out.down_bias"
    slot = load(bank, spec, seed=1)
    with pytest.raises(AdapterError, match=re.escape(f"{name} must be (3,), it is {shape}")):
        bank.write(slot, values(spec, seed=7) | {name: torch.ones(shape)})
    assert_holds(bank, slot, spec, seed=1)


def test_sizes_of_one_bucket_share_a_group_and_padding_is_zero():
    bank = Bank()
    small, full = (load(bank, f"houlsby:size={size},norms=false", seed=size) for size in (3, 8))
    (group,) = bank.groups.values()
    stack = group.stacks["layers.0.attn.out.down"]
    assert tuple(stack.shape) == (4, 16, 8)
    assert not stack[group.entry_of[small], :, 3:].any()
    assert stack[group.entry_of[full], :, 3:].all()
    load(bank, "houlsby:size=9,norms=false")
    assert len(bank.groups) == 2


@examples(25, derandomize=True)
@given(st.lists(st.integers(-6, len(SPECS) - 1), min_size=1, max_size=14))
def test_adapters_that_come_and_go_leave_the_others_as_they_were(moves: list[int]):
    """A move of 0 and more loads that spec; a negative one unloads the slot at that place, if there is one."""
    bank, loaded = Bank(), {}
    for seed, move in enumerate(moves):
        if move >= 0:
            loaded[load(bank, SPECS[move], seed)] = (SPECS[move], seed)
        elif -move <= len(loaded):
            slot = list(loaded)[move]
            bank.unload(slot)
            del loaded[slot]
        assert list(bank.slots) == list(loaded)
        for slot, (spec, own) in loaded.items():
            assert_holds(bank, slot, spec, own)
        assert_tidy(bank)


def test_capacity_doubles_and_the_parameters_stay_the_same_objects():
    bank = Bank()
    load(bank, "bitfit", seed=0)
    before = {id(stack) for stack in bank.parameters()}
    capacities = []
    for seed in range(1, 9):
        load(bank, "bitfit", seed)
        capacities.append(next(iter(bank.groups.values())).capacity)
    assert capacities == [4, 4, 8, 8, 8, 8, 16, 16]
    assert {id(stack) for stack in bank.parameters()} == before
    for slot in range(1, 10):
        assert_holds(bank, slot, "bitfit", seed=slot - 1)
    assert_tidy(bank)


def test_a_freed_entry_is_cleared_and_used_again():
    bank = Bank()
    slots = [load(bank, "bitfit", seed) for seed in range(3)]
    (group,) = bank.groups.values()
    entry = group.entry_of[slots[1]]
    bank.unload(slots[1])
    assert not any(stack[entry].any() for stack in group.stacks.values())
    new = load(bank, "bitfit", seed=9)
    assert new not in slots
    assert group.entry_of[new] == entry
    assert group.capacity == 4
    assert_holds(bank, new, "bitfit", seed=9)


def test_adapters_of_other_layers_get_no_rows_that_they_do_not_have():
    bank = Bank()
    for seed in range(5):
        load(bank, "bitfit:layers=0", seed)
    before = sum(stack.numel() for stack in bank.parameters())
    load(bank, "bitfit", 9)  # one unusual neighbour
    small, large = bank.groups.values()
    assert sum(stack.numel() for stack in small.stacks.values()) == before
    assert {name.split(".")[1] for name in small.stacks} == {"0"}
    assert large.capacity == 2


def test_a_group_and_its_mounts_go_with_the_last_adapter():
    bank = Bank()
    first, second, other = load(bank, "bitfit"), load(bank, "bitfit"), load(bank, "lora")
    bank.unload(first)
    assert len(bank.groups) == 2
    bank.unload(second)
    assert [type(delta).__name__ for delta, _ in bank.groups] == ["LowRank"]
    assert {name for name, mounts in bank.mounts.items() if mounts} == {
        f"layers.{i}.attn.{kind}" for i in range(3) for kind in "qv"
    }
    bank.unload(other)
    assert not bank.groups
    assert not any(bank.mounts.values())
    assert not list(bank.parameters())


def test_a_slot_is_routed_only_at_the_sites_it_adapts():
    bank = Bank()
    whole, top, low = load(bank, "bitfit"), load(bank, "bitfit:layers=2"), load(bank, "bitfit:layers=0")
    other = load(bank, "bitfit")
    a, b = [0, 0, 0, 1, 1, 1, 2, 0], [0, 1, 1, 0, 0, 0, 0, 0]
    slots = [BASE, low, whole, other, top]
    assert routes(bank, slots, [1, 2, 3, 1, 1]) == [[a, b], [a], [a, [0] * 7 + [1]]]
    bank.unload(whole)
    assert routes(bank, [top, low], [2, 2]) == [[[0, 0, 1, 1]], [], [[1, 1, 0, 0]]]


def test_a_shared_tensor_has_one_copy_for_all_adapters_of_a_group():
    bank = Bank()
    part = [Part(site("layers.0.ffn.out"), Projected(), "layers.0.ffn.out")]
    slots = []
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        shapes = {name: param.shape for name, param in Projected().params(part[0].site).items()}
        values = {"basis": torch.ones(shapes["basis"]), "scale": torch.randn(shapes["scale"], generator=random)}
        slots.append(bank.load(part, {f"layers.0.ffn.out.{name}": value for name, value in values.items()}))
    (group,) = bank.groups.values()
    assert group.capacity == 4
    assert len(group.stacks["layers.0.ffn.out.basis"]) == 1
    assert not group.stacks["layers.0.ffn.out.basis"].requires_grad
    bank.unload(slots[0])
    assert bank.read(slots[1])["layers.0.ffn.out.basis"].eq(1).all()
    assert "layers.0.ffn.out.basis" not in bank.gradients(slots[1])


@dataclass(frozen=True)
class Projected(Delta):
    """A trained vector times a random basis that all adapters share."""

    def params(self, site: Site) -> dict[str, Param]:
        return {"basis": Param((site.d_in, site.d_out), "shared"), "scale": Param((site.d_out,))}

    def difference(self, route: Route, p: Any, at: Signal) -> Tensor:
        return (at.x @ p["basis"][0]) * route.vector(p["scale"], at.x)


def test_sites_that_share_a_row_read_one_stack():
    bank = Bank()
    slot = load(bank, "houlsby:size=8,share=2", seed=1)
    actions = {
        name: next(iter(BankPass(bank, runs_of(bank, [slot], [2])).at(site(name))))
        for name in ("layers.0.attn.out", "layers.1.ffn.out", "layers.2.ffn.out")
    }
    stacks = {name: tensors["down"] for name, (_, tensors, _) in actions.items()}
    assert stacks["layers.0.attn.out"] is stacks["layers.1.ffn.out"]
    assert stacks["layers.0.attn.out"] is not stacks["layers.2.ffn.out"]


def test_gradients_are_a_slots_own_at_their_true_sizes():
    bank = Bank()
    first, second = load(bank, "lora:rank=3", seed=1), load(bank, "lora:rank=5", seed=2)
    assert set(bank.gradients(first).values()) == {None}
    name = "layers.1.attn.q.down"
    stack, at = bank.place(first, name)
    stack[at].square().sum().backward()
    found = bank.gradients(first)
    assert torch.equal(found[name], 2 * values("lora:rank=3", 1)[name])
    assert not bank.gradients(second)[name].any()
    assert tuple(bank.gradients(second)[name].shape) == (16, 5)
    assert found["layers.0.attn.q.down"] is None
    assert not any(name.endswith("scale") for name in found)  # a constant is not trained


def test_a_new_adapter_does_not_inherit_the_gradient_of_the_one_before():
    bank = Bank()
    stays, goes = load(bank, "bitfit", seed=1), load(bank, "bitfit", seed=2)
    name = "layers.0.ffn.out.bias"
    stack, _ = bank.place(stays, name)
    stack.square().sum().backward()
    kept = bank.gradients(stays)[name]
    bank.unload(goes)
    new = load(bank, "bitfit", seed=3)
    assert torch.equal(bank.gradients(stays)[name], kept)
    inherited = bank.gradients(new)[name]
    assert inherited is None or not inherited.any()


def test_growing_keeps_the_gradients_of_the_others():
    bank = Bank()
    first = load(bank, "bitfit", seed=1)
    name = "layers.0.ffn.out.bias"
    bank.place(first, name)[0].square().sum().backward()
    expected = bank.gradients(first)[name]
    load(bank, "bitfit", seed=2)
    found = bank.gradients(first)[name]
    assert found is not None
    assert torch.equal(found, expected)


def test_only_trained_stacks_are_parameters():
    bank = Bank()
    load(bank, "lora")
    (group,) = bank.groups.values()
    trained = {id(stack) for stack in bank.parameters()}
    names = {name for name, stack in group.stacks.items() if id(stack) in trained}
    assert names == {name for name in group.stacks if not name.endswith(".scale")}
    assert not any(stack.requires_grad for name, stack in group.stacks.items() if name.endswith(".scale"))


def test_the_order_puts_the_base_first_and_a_groups_adapters_together_by_entry():
    bank = Bank()
    a, b, c, d = (load(bank, spec) for spec in ("bitfit", "lora", "bitfit", "lora:rank=2"))
    assert sorted([d, c, BASE, b, a], key=bank.ranks.__getitem__) == [BASE, a, c, b, d]
    bank.unload(a)
    new = load(bank, "bitfit")  # takes the first entry
    assert sorted([d, c, BASE, b, new], key=bank.ranks.__getitem__) == [BASE, new, c, b, d]


def test_an_adapter_without_tensors_in_the_bank_has_an_order_too():
    bank = Bank()  # a weight-level adapter without a head
    empty, other = bank.load([], {}), load(bank, "bitfit")
    ordered = sorted([other, empty, BASE], key=bank.ranks.__getitem__)
    assert ordered.index(BASE) < ordered.index(other)


def test_an_unknown_slot_is_an_error_that_names_the_loaded_ones():
    bank = Bank()
    with pytest.raises(SlotError, match=r"no slot 1; loaded: none"):
        bank.read(1)
    first, gone = load(bank, "bitfit"), load(bank, "bitfit")
    bank.unload(gone)
    name = "layers.0.ffn.out.bias"
    for use in (bank.slot, bank.read, bank.gradients, bank.unload):
        with pytest.raises(SlotError, match=f"no slot {gone}; loaded: {first}$"):
            use(gone)
    with pytest.raises(SlotError):
        bank.write(gone, values("bitfit", 0))
    with pytest.raises(SlotError):
        bank.place(gone, name)
    load(bank, "bitfit", seed=5)  # a number is never given twice
    with pytest.raises(SlotError):
        bank.read(gone)


def gate_sum(tensors: dict[str, Tensor]) -> Tensor:
    """E[L0] of an adapter's gates, each tensor once."""
    return torch.stack(
        [HardConcrete(-0.1, 1.1, 2 / 3).expected_l0(t).sum() for n, t in tensors.items() if n.endswith("gate")]
    ).sum()


@pytest.mark.parametrize(("share", "gates"), [("none", 3), ("v", 3), ("alpha", 1), ("both", 1)])
def test_a_gate_counts_once_however_many_layers_share_it(share: str, gates: int):
    spec = f"adapterbias:l0=0.5,share={share}"
    bank = Bank()
    tensors = method(spec).initial(sites(), 0)
    slot = bank.load(method(spec).parts(sites()), tensors)
    assert sum(name.endswith("gate") for name in tensors) == gates
    torch.testing.assert_close(bank.penalty(slot), 0.5 * gate_sum(tensors))


def test_penalties_are_each_slots_own():
    bank = Bank()
    plain, shared = load(bank, "bitfit"), load(bank, "adapterbias:l0=1,share=alpha", seed=1)
    own, low = load(bank, "adapterbias:l0=1", seed=2), load(bank, "adapterbias:l0=1,layers=0", seed=3)
    near = load(bank, "adapterbias:l0=1,layers=0", seed=4)
    assert bank.penalty(plain) is None
    found = {slot: bank.penalty(slot) for slot in (shared, own, low)}
    for slot in (shared, own, low):
        tensors = bank.read(slot)
        strengths = {name.removesuffix("strength"): t for name, t in tensors.items() if name.endswith("strength")}
        parts = [
            HardConcrete(-0.1, 1.1, 2 / 3).expected_l0(tensors[f"{row}gate"]).sum() * s[0]
            for row, s in strengths.items()
        ]
        torch.testing.assert_close(found[slot], torch.stack(parts).sum())
    found[low].backward()
    name = "layers.0.ffn.out.gate"
    assert bank.gradients(low)[name].all()
    assert not bank.gradients(near)[name].any()
    assert bank.gradients(own)[name] is None


def test_a_shared_gate_is_charged_to_slots_of_different_layers():
    bank = Bank()
    specs = [f"adapterbias:l0=0.5,share=alpha,layers={layer}" for layer in (0, 1)]
    slots = [bank.load(method(spec).parts(sites()), method(spec).initial(sites(), 0)) for spec in specs]
    first, second = (bank.penalty(slot) for slot in slots)
    assert first > 0
    torch.testing.assert_close(first, second)
