"""AdamW in three kernels against the optimiser's own update, with clipping; in Triton's interpreter without a GPU."""

from __future__ import annotations

import tiny
import torch
from interpreted import DEVICE

from inlay.training.adamw import AdamW, Settings

SETTINGS = [
    Settings(step=1, lr=1e-3),
    Settings(step=7, lr=3e-2, weight_decay=0.1, clip=0.5),
    Settings(step=2000, lr=1e-4, weight_decay=0.01, clip=1e9),
]
METHODS = ["houlsby:size=5", "adapterbias", "houlsby:size=8", "norms", "finetune:top=1"]
GATED = ["diffprune:layers=1", "adapterbias:l0=0.1", "adapterbias:l0=0.1"]
"""The first two have gates that step at a rate of their own."""


def stepped(fused: bool, left_out: int | None = None) -> tuple[dict[str, dict[str, torch.Tensor]], AdamW]:
    """Adapters after two steps from random gradients; the last method decays the base's part too."""
    host = tiny.host("bert", num_hidden_layers=2)
    host.base.model.to(DEVICE)
    for i, method in enumerate(METHODS + GATED):
        host.add(f"a{i}", method, labels=3, seed=i)
    host.forward.kernels = fused
    optimiser = AdamW(host.forward)
    chosen = [i for i in range(len(METHODS)) if i != left_out]
    for seed in range(2):
        random = torch.Generator().manual_seed(seed)
        for p in host.parameters():
            p.grad = torch.randn(p.shape, generator=random).to(p.device)
        settings = {host.slot(f"a{i}"): SETTINGS[i % 3] for i in chosen}
        settings[host.slot("a4")] = Settings(3, 1e-2, 0.1, 0.7, decay_weights=True)
        gates = [Settings(4, 1e-3, 0.1, 0.3, gate_lr=rate) for rate in (0.1, 0.05, None)]
        settings |= {host.slot(f"a{5 + i}"): one for i, one in enumerate(gates)}
        assert (optimiser.plan(settings).bounds is not None) == fused
        optimiser.step(settings)
    return {name: host.read(name) for name in host.names}, optimiser


def assert_equal(one: dict[str, dict[str, torch.Tensor]], other: dict[str, dict[str, torch.Tensor]]) -> None:
    for name, tensors in one.items():
        for key, value in tensors.items():
            torch.testing.assert_close(value, other[name][key], atol=1e-6, rtol=1e-5, msg=f"{name} {key}")


def test_two_steps_are_those_of_the_plain_update():
    (found, optimiser), (expected, other) = stepped(True), stepped(False)
    assert_equal(found, expected)
    for mine, theirs in zip(optimiser.read(1), other.read(1), strict=True):
        assert_equal({"moments": mine}, {"moments": theirs})


def test_who_does_not_step_is_gc_frozen():
    found, _ = stepped(True, left_out=2)
    fresh = tiny.host("bert", num_hidden_layers=2)
    for i, method in enumerate(METHODS):
        fresh.add(f"a{i}", method, labels=3, seed=i)
    for name, value in fresh.read("a2").items():
        assert torch.equal(found["a2"][name].cpu(), value.cpu()), name
    assert not torch.equal(found["a0"]["head.weight"].cpu(), fresh.read("a0")["head.weight"].cpu())
