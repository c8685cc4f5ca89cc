"""Gates move while they train: at a rate of their own in diff pruning, from log-odds 0 in AdapterBias."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tiny
import torch
from training import work

import inlay
from inlay.bank.delta import parse
from inlay.bank.gates import HardConcrete
from inlay.methods.adapterbias import AdapterBias
from inlay.training.adamw import AdamW, Settings


def gates_after(spec: str, steps: int, lr: float, clip: float | None = 1.0) -> dict[str, float]:
    """How far the penalty alone shuts gates in so many steps, with a learning rate that falls to zero."""
    host = tiny.host("bert", num_hidden_layers=1)
    host.add("a", spec)
    optimiser, slot, rate = AdamW(host.forward), host.slot("a"), parse(spec).gate_rate
    for step in range(steps):
        left = 1 - step / steps
        penalty = host.penalty("a")
        assert penalty is not None
        penalty.backward()
        own = None if rate is None else rate * left
        optimiser.step({slot: Settings(step + 1, lr * left, 0.01, clip, gate_lr=own)})
        optimiser.zero_grad()
    found = list(parse(spec).gates_left(host.read("a")).values())
    return {key: sum(one[key] for one in found) for key in found[0]}


@pytest.mark.full
def test_diff_prunings_penalty_shuts_gates_in_a_run_of_the_papers_length():
    """With the strength and the rate of Guo et al.'s code; CoLA has 3,207 steps there."""
    found = gates_after("diffprune:layers=0", 800, 5e-5)
    assert found["left"] == 0
    assert found["expected"] < 0.2 * found["of"]


def test_at_the_runs_own_rate_they_would_not_move():
    """The control."""
    found = gates_after("diffprune:layers=0,gate_lr=0", 40, 5e-5)
    assert found["left"] == found["of"]
    assert found["expected"] > 0.99 * found["of"]


@pytest.mark.parametrize(("strength", "opens"), [(0.0, 1.0), (1.25e-7, 0.99329), (1e-5, 0.97)])
def test_a_stronger_penalty_shuts_more(strength, opens):
    found = gates_after(f"diffprune:layers=0,l0={strength}", 40, 5e-5)
    assert found["expected"] <= opens * found["of"]


def test_gates_step_as_plain_adamw_of_their_own():
    """At their own rate, clipped by themselves, and without decay; the rest as if there were no gates."""
    host = tiny.host("bert", num_hidden_layers=1)
    host.add("a", "diffprune:layers=0")
    tiny.shake(host, "a")
    slot, optimiser = host.slot("a"), AdamW(host.forward)
    mine = {n: p for n, p in host.forward.bank.slot(slot).weights.tensors.items() if isinstance(p, torch.nn.Parameter)}
    theirs = {n: torch.nn.Parameter(p.detach().clone()) for n, p in mine.items()}
    gates = [p for n, p in theirs.items() if n.endswith(".gate")]
    rest = [p for n, p in theirs.items() if not n.endswith(".gate")]
    plain = [torch.optim.AdamW(rest, 1e-3, weight_decay=0.1), torch.optim.AdamW(gates, 0.05, weight_decay=0.0)]
    random = torch.Generator().manual_seed(0)
    for step in range(3):
        for name, p in mine.items():
            p.grad = torch.randn(p.shape, generator=random)
            theirs[name].grad = p.grad.clone()
        for some in (rest, gates):
            torch.nn.utils.clip_grad_norm_(some, 0.5)
        for one in plain:
            one.step()
        optimiser.step({slot: Settings(step + 1, 1e-3, 0.1, 0.5, gate_lr=0.05)})
    for name, p in mine.items():
        torch.testing.assert_close(p, theirs[name], atol=1e-6, rtol=1e-5)


def test_adapterbias_has_the_gates_of_louizos():
    method = parse("adapterbias:l0=0.01")
    assert isinstance(method, AdapterBias)
    gate = HardConcrete(method.low, method.high, method.temperature)
    assert (method.low, method.high, method.temperature, method.gate) == (-0.1, 1.1, 2 / 3, 0.0)
    assert gate.expected_l0(torch.tensor(0.0)).item() == pytest.approx(0.8318, abs=1e-4)


@pytest.mark.full
def test_adapterbias_prunes_at_the_papers_rates():
    """CoLA's rates add up to 2.7 in the paper's settings; gates shut exactly below log-odds -2.4."""
    found = gates_after("adapterbias:l0=0.01", 560, 1e-2)
    assert found["left"] == 0
    shy = gates_after("adapterbias:l0=0.01", 30, 1e-2)
    assert shy["left"] == shy["of"]
    assert shy["expected"] < 0.83 * shy["of"]


@pytest.mark.full
def test_sparsity_rises_in_training_and_the_score_stays():
    def trained(l0: float) -> tuple[inlay.Result, list[float]]:
        host, seen = work.host(), []

        def note(event: dict[str, Any]) -> None:
            name = " run 0"
            if event["event"] == "eval" and (found := parse(spec).gates_left(host.read(name))):
                seen.append(found["all"]["left"] / found["all"]["of"])

        spec = f"diffprune:target=0.05,gate_lr=0.3,l0={l0}"
        run = work.run(work.texts(64, seed=1), spec, lr=1e-2, epochs=24, batch_size=16, val_size=32, dropout=False)
        (result,) = inlay.train(host, [run], callbacks=[note])
        return result, seen

    result, seen = trained(1e-4)
    assert seen[0] == 1.0
    assert seen[-1] < 0.5
    assert all(later <= earlier + 0.02 for earlier, later in itertools.pairwise(seen))
    plain, _ = trained(0.0)
    accuracy = [r.metrics["validation"]["accuracy"] for r in (result, plain)]
    assert accuracy[0] >= accuracy[1] - 0.1
    gates = result.adapter.about["gates"]["all"]  # of the best state
    assert gates["expected"] < gates["of"]
