"""Memory that runs out while an adapter comes in: all of it, or nothing, and recordings learn of every move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import inlay
from inlay.training.adamw import AdamW
from inlay.training.slots import places_of, restore_places

TAKES = {"aten::cat", "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::clone", "aten::_to_copy"}


class Full(TorchDispatchMode):
    """Memory runs out at the n-th tensor that takes some."""

    def __init__(self, at: int):
        super().__init__()
        self.left = at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in TAKES:
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("CUDA out of memory (a test)")
        return func(*args, **(kwargs or {}))


@contextmanager
def memory_ends(at: int) -> Iterator[None]:
    with pytest.raises(torch.OutOfMemoryError), Full(at):
        yield


def takes(do: Any) -> int:
    """How many tensors an action takes memory for."""
    with Full(10**9) as counted:
        do()
    return 10**9 - counted.left


def host_with(*names: str, spec: str = "houlsby:size=4") -> inlay.Host:
    host = tiny.text_host("bert")
    for name in names:
        host.add(name, spec, labels=["x", "y"])
        tiny.shake(host, name, ord(name))
    return host


def held(host: inlay.Host) -> Any:
    """All that must be as before, whatever the capacity."""
    bank = host.forward.bank
    groups = {str(d): (dict(g.entry_of), sorted(g.stacks)) for d, g in bank.groups.items()}
    mounts = {site: [(m.names, set(m.slots)) for m in ms] for site, ms in bank.mounts.items() if ms}
    sizes = [{s.shape[0] for s in g.stacks.values()} == {g.capacity} for g in bank.groups.values()]
    return groups, mounts, sizes, sorted(bank.slots), [s.weights is not None for s in bank.slots.values()], host.names


def pointers(host: inlay.Host) -> dict[Any, int]:
    groups = host.forward.bank.groups.items()
    return {(d, n): s.data_ptr() for d, g in groups for n, s in g.stacks.items()}


def group_states(host: inlay.Host) -> list[tuple[int, int]]:
    """What recordings depend on."""
    return [group.state for group in host.forward.bank.groups.values()]


@pytest.mark.parametrize("spec", ["houlsby:size=4", "lora:rank=2", "finetune:top=1"])
def test_a_load_that_fails_leaves_no_trace(spec):
    """Wherever memory ends: in the growth of a stack, in a new stack, in a weight-level adapter's copies."""
    wanted, ask = host_with("b", spec=spec).adapter("b"), [("a", "a good film")]
    host = host_with("a")
    fitted = host.fitted(wanted)
    most = takes(lambda: host.enter("b", *fitted))
    assert most > 5
    for at in (1, 2, most // 2, most):
        host = host_with("a")
        answer = host.predict(ask)
        before, was, states = held(host), pointers(host), group_states(host)
        with memory_ends(at):
            host.enter("b", *fitted)
        assert held(host) == before
        assert all(pointers(host)[n] == p for n, p in was.items()) or group_states(host) != states
        assert host.predict(ask) == answer
        host.load(wanted)
        assert all(torch.equal(t, host.adapter("b").tensors[n]) for n, t in wanted.tensors.items())
        assert host.predict(ask) == answer


def test_a_stack_grows_with_all_its_neighbours_and_their_gradients_or_not_at_all():
    host = host_with("a")
    group = next(iter(host.forward.bank.groups.values()))
    for stack in group.stacks.values():
        stack.grad = torch.ones_like(stack)
    for at in range(1, takes(lambda: copied(group)) + 1, 7):
        was = {n: (s.data_ptr(), s.grad.data_ptr()) for n, s in group.stacks.items()}
        with memory_ends(at):
            group.grow()
        assert {n: (s.data_ptr(), s.grad.data_ptr()) for n, s in group.stacks.items()} == was
        assert group.capacity == 2
    group.grow()
    assert all(s.shape[0] == s.grad.shape[0] == group.capacity == 4 for s in group.stacks.values())


def copied(group: Any) -> None:
    """What growing takes."""
    for stack in group.stacks.values():
        for tensor in (stack.data, stack.grad):
            torch.cat([tensor, torch.zeros_like(tensor)])


def test_moments_grow_both_or_not_at_all():
    host = host_with("a")
    optimiser = AdamW(host.forward)
    slot = host.slot("a")
    optimiser.read(slot)
    host.add("b", "houlsby:size=4", labels=["x", "y"])
    with memory_ends(3):  # zeros, the first moment, the second one
        optimiser.read(slot)
    first, second = optimiser.read(slot)
    assert {n: t.shape for n, t in first.items()} == {n: t.shape for n, t in second.items()}
    optimiser.read(host.slot("b"))


def test_moves_of_a_restored_layout_are_counted():
    """A recorded step knows the addresses of its entries."""
    host = host_with("a", "b")
    slots = [host.slot("a"), host.slot("b")]
    places = places_of(host.forward.bank, slots)
    version, was = group_states(host), pointers(host)
    restore_places(host.forward.bank, slots, [[(rank, 5 - entry) for rank, entry in one] for one in places])
    assert pointers(host) != was
    assert not set(group_states(host)) & set(version)
    version = group_states(host)
    restore_places(host.forward.bank, slots, places)
    assert not set(group_states(host)) & set(version)
    assert places_of(host.forward.bank, slots) == places
