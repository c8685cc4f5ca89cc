"""Memory that runs out anywhere in a training: no step is made twice, none is half made, and no run is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training import work

import inlay
from inlay.bank.bank import Bank
from inlay.bank.records import on_device
from inlay.methods.diffprune import DiffPrune
from inlay.training import milestones, parallel
from inlay.training.adamw import AdamW, Settings
from inlay.training.cache import Cache
from inlay.training.slots import Slots

pytestmark = pytest.mark.full
METHODS = ["houlsby:size=4", "lora:rank=2", "diffprune:target=0.05", "norms"]


def runs() -> list[inlay.Run]:
    return [work.run(seed=i, method=m, epochs=2, batch_size=6) for i, m in enumerate(METHODS)]


@pytest.fixture(scope="module")
def expected() -> list[inlay.Result]:
    return list(inlay.train(work.host(), runs()))


def assert_equal(found: list[inlay.Result], expected: list[inlay.Result]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.problem == ""
        assert one.losses == pytest.approx(other.losses, abs=1e-5)
        assert [h["step"] for h in one.history] == [h["step"] for h in other.history]
        assert one.metrics == other.metrics


class Short:
    """A function that finds no memory at some of its calls."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, at: set[int]):
        self.plain, self.calls, self.at = getattr(owner, name), 0, at

        def short(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls in self.at:
                raise torch.OutOfMemoryError("so full")
            return self.plain(*arguments, **more)

        patch.setattr(owner, name, short)


@pytest.mark.parametrize("at", [{2}, {5}, {8, 9}])
def test_in_the_middle_of_an_update(monkeypatch, expected, at):
    """Where it prepares for one group after another."""
    short = Short(monkeypatch, AdamW, "_views", at)
    assert_equal(list(inlay.train(work.host(), runs())), expected)
    assert short.calls > max(at)


@pytest.mark.parametrize("at", [{2}, {3, 4}])
def test_where_a_run_begins(monkeypatch, expected, at):
    """It waits for a slot."""
    short, events = Short(monkeypatch, Bank, "load", at), []
    assert_equal(list(inlay.train(work.host(), runs(), callbacks=[events.append])), expected)
    assert short.calls > max(at)
    assert [e["slots"] for e in events if e["event"] == "slots"]


ENDS = {"measured": milestones, "finish": DiffPrune, "outputs_of": parallel, "back_to_best": Slots}


PLACES = [(name, at) for name in ENDS for at in ({1}, {2, 4}) if (name, at) != ("finish", {2, 4})]


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_where_a_run_is_measured_and_ends(monkeypatch, expected, name, at):
    """It is done again, with less beside it."""
    short = Short(monkeypatch, ENDS[name], name, at)
    assert_equal(list(inlay.train(work.host(), runs())), expected)
    assert short.calls >= min(at)


def test_a_run_that_never_fits_fails_alone(monkeypatch, expected):
    plain = Bank.load

    def load(self: Bank, parts: Any, tensors: Any, method: Any = None, *rest: Any) -> int:
        if method is not None and method.name == "lora":
            raise torch.OutOfMemoryError("so full")
        return plain(self, parts, tensors, method, *rest)

    monkeypatch.setattr(Bank, "load", load)
    found = list(inlay.train(work.host(), runs()))
    assert [r.ok for r in found] == [True, False, True, True]
    assert "does not fit in memory even on its own" in found[1].problem
    assert_equal([found[0], *found[2:]], [expected[0], *expected[2:]])


def test_states_of_lower_layers_that_do_not_fit_are_computed_every_time(monkeypatch):
    some = [work.run(method="houlsby:size=4,layers=top1", dropout=False)]
    wanted = list(inlay.train(work.host(), some))
    short = Short(monkeypatch, Cache, "_compute", set(range(1, 100)))
    assert_equal(list(inlay.train(work.host(), some)), wanted)
    assert short.calls == 1


class NoMemory(TorchDispatchMode):
    """Refuses what makes a tensor that is no view of another."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name.endswith("_") or name in ("view", "slice", "detach", "select", "unbind"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("decay", [False, True])
def test_the_update_itself_takes_no_memory(decay):
    host = work.host()
    for name, spec in {"a": "houlsby:size=4", "b": "houlsby:size=4", "c": "lora:rank=2", "d": "finetune:top=1"}.items():
        host.add(name, spec, labels=["x", "y"])
    sum(one.sum() for one in host.logits(host.batch(["a good film"] * 4), ["a", "b", "c", "d"])).backward()
    settings = {host.slot(name): Settings(1, 1e-2, 0.1, 1.0, decay and name == "d") for name in "abcd"}
    optimiser = AdamW(host.forward)
    update = optimiser.prepare(on_device(optimiser.plan(settings), host.base.device))
    before = host.read("d")
    with NoMemory():
        update()
    assert any(not torch.equal(t, before[n]) for n, t in host.read("d").items())
