"""The optimiser of the bank equals torch.optim.AdamW with clip_grad_norm_, run by run, and touches nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor, nn

import inlay
from inlay.training import adamw
from inlay.training.adamw import AdamW, Settings, _pieces, _Views

SPECS = {
    "houlsby:size=4": Settings(0, 1e-2, 0.0, 0.5),
    "houlsby:size=7": Settings(0, 3e-3, 0.1, None),
    "houlsby:size=4,norms=false": Settings(0, 2e-2, 0.3, 1e-3),
    "adapterbias": Settings(0, 5e-3, 0.01, 1.0),
    "adapterbias:l0=0.01": Settings(0, 5e-3, 0.02, 2.0),
    "bitfit": Settings(0, 1e-3, 0.5, 100.0),
    "norms": Settings(0, 4e-3, 0.0, 0.1),
    "lora:rank=2": Settings(0, 6e-3, 0.2, 0.7),
    "finetune": Settings(0, 1e-3, 0.1, 0.5),
    "finetune:top=1": Settings(0, 1e-3, 0.0, None),
    "diffprune": Settings(0, 2e-3, 0.05, 0.3),
    "frozen": Settings(0, 1e-2, 0.1, 0.2),
}


class Reference:
    """One adapter's tensors with torch's own optimiser."""

    def __init__(self, host: inlay.Host, name: str, settings: Settings):
        self.host, self.name, self.settings = host, name, settings
        constant = {n for n, p in host.forward.bank.slot(host.slot(name)).params.items() if p.role == "constant"}
        self.values = {n: nn.Parameter(t.clone()) for n, t in host.read(name).items() if n not in constant}
        self.optimiser = torch.optim.AdamW(
            self.values.values(), lr=settings.lr, weight_decay=settings.weight_decay, foreach=False
        )
        self.steps = 0

    def step(self) -> Settings:
        """Step on the host's gradients; the settings for the same step of ours."""
        for name, gradient in self.host.gradients(self.name).items():
            self.values[name].grad = None if gradient is None else gradient.clone()
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(list(self.values.values()), self.settings.clip)
        self.optimiser.step()
        self.steps += 1
        return replace(self.settings, step=self.steps)

    def difference(self) -> float:
        ours = self.host.read(self.name)
        return max((ours[n] - v).abs().max().item() for n, v in self.values.items())


def backward(host: inlay.Host, names: list[str], step: int) -> None:
    """A loss whose gradients are of different sizes; every adapter has two rows."""
    batch = tiny.batch(2 * len(names), seed=step)
    asked = [name for name in names for _ in range(2)]
    logits = host.logits(batch, asked, host.keys(dict.fromkeys(names, (0, step))))
    total = torch.stack([(1 + i % 3) * (out * torch.tensor([1.0, -1.0])).sum() ** 2 for i, out in enumerate(logits)])
    penalties = [p for name in names if (p := host.penalty(name)) is not None]
    (total.sum() + sum(penalties)).backward()


def filled(specs: list[str] | None = None) -> inlay.Host:
    host = tiny.host()
    for i, spec in enumerate(SPECS if specs is None else specs):
        host.add(spec, spec, labels=2, seed=i)
        tiny.shake(host, spec, seed=i, scale=0.05)
    return host


def bits(host: inlay.Host, name: str) -> dict[str, bytes]:
    return {n: t.numpy().tobytes() for n, t in host.read(name).items()}


@pytest.fixture
def world() -> tuple[inlay.Host, AdamW, dict[str, Reference]]:
    host = filled()
    return host, AdamW(host.forward), {name: Reference(host, name, one) for name, one in SPECS.items()}


def test_every_method_with_settings_of_its_own(world):
    host, ours, references = world
    start = {name: host.read(name) for name in SPECS}
    for step in range(12):
        backward(host, list(SPECS), step)
        ours.step({host.slot(name): reference.step() for name, reference in references.items()})
        ours.zero_grad()
    for name, reference in references.items():
        moved = max((host.read(name)[n] - t).abs().max().item() for n, t in start[name].items())
        assert moved > 1e-3, name
        assert reference.difference() < 2e-6, name


@pytest.mark.thin(2)
@pytest.mark.parametrize("change", ["lr", "weight_decay", "clip", "step", "neighbour"])
def test_the_comparison_notices(world, change):
    """The control: one setting that is a little off, or another slot's, is no longer equal."""
    host, ours, references = world
    name = "houlsby:size=7"
    wrong = {"lr": {"lr": 3.03e-3}, "weight_decay": {"weight_decay": 0.2}, "clip": {"clip": 0.01}}
    for step in range(4):
        backward(host, list(SPECS), step)
        settings = {host.slot(n): reference.step() for n, reference in references.items()}
        own = settings[host.slot(name)]
        wrong |= {"step": {"step": own.step + 3}, "neighbour": {"lr": settings[host.slot("houlsby:size=4")].lr}}
        settings[host.slot(name)] = replace(own, **wrong[change])
        ours.step(settings)
        ours.zero_grad()
    assert references[name].difference() > 1e-5
    assert max(r.difference() for n, r in references.items() if n != name) < 2e-6


def test_slots_that_skip_steps_keep_every_bit(world):
    host, ours, references = world
    names = list(SPECS)
    for step in range(12):
        chosen = [name for i, name in enumerate(names) if (step + i) % 3 or i % 4 == 0]
        others = {name: bits(host, name) for name in names if name not in chosen}
        assert others or step % 3
        backward(host, names if step % 2 else chosen, step)  # gradients alone must not move anybody
        ours.step({host.slot(name): references[name].step() for name in chosen})
        ours.zero_grad()
        for name, before in others.items():
            assert bits(host, name) == before, name
    assert len({reference.steps for reference in references.values()}) > 1
    for name, reference in references.items():
        assert reference.difference() < 2e-6, name


def test_the_first_entry_of_every_stack_stays_zero(world):
    """It stands for rows that are not in a group."""
    host, ours, references = world
    for step in range(3):
        backward(host, list(SPECS), step)
        ours.step({host.slot(name): reference.step() for name, reference in references.items()})
        ours.zero_grad()
    for group in host.forward.bank.groups.values():
        for stack in group.stacks.values():
            assert not stack[0].any()


def test_slots_come_and_go_and_stacks_grow():
    """Entries are used again by adapters of other sizes; the moments of those before them must not show."""
    host = tiny.host()
    ours = AdamW(host.forward)
    one = Settings(0, 1e-2, 0.1, 0.5)
    references: dict[str, Reference] = {}

    def enter(name: str, spec: str, seed: int) -> None:
        host.add(name, spec, labels=2, seed=seed)
        tiny.shake(host, name, seed=seed, scale=0.05)
        ours.forget(host.slot(name))
        references[name] = Reference(host, name, one)

    def go(steps: int) -> None:
        for step in range(steps):
            backward(host, list(references), step)
            ours.step({host.slot(n): r.step() for n, r in references.items()})
            ours.zero_grad()

    enter("a", "houlsby:size=8", 0)
    enter("b", "houlsby:size=8", 1)
    go(3)
    host.unload("a")  # without forgetting it first
    del references["a"]
    ours.drop_unused()
    enter("c", "houlsby:size=5", 2)
    go(3)
    for i in range(4):
        enter(f"more {i}", "houlsby:size=6" if i % 2 else "finetune:top=1", 3 + i)
    go(3)
    for name, reference in references.items():
        assert reference.difference() < 2e-6, name
    assert {references[n].steps for n in ("b", "c", "more 0")} == {9, 6, 3}
    slot = host.slot("c")
    for name in host.forward.bank.slot(slot).params:
        stack, (entry, *true_size) = host.forward.bank.place(slot, name)
        rest = stack[entry].detach().clone()
        rest[tuple(true_size)] = 0
        assert not rest.any(), f"the padding of {name} moved"


def test_moments_can_be_read_and_written_elsewhere():
    """A run that goes on in another slot of another host goes on as it would have."""
    specs = ["houlsby:size=4", "lora:rank=2", "finetune:top=1"]
    host = filled(specs)
    ours = AdamW(host.forward)
    for step in range(3):
        backward(host, specs, step)
        ours.step({host.slot(n): Settings(step + 1, 1e-2, 0.1, 0.5) for n in specs})
        ours.zero_grad()
    kept = {n: (host.read(n), *ours.read(host.slot(n))) for n in specs}
    other = filled(["houlsby:size=7", *reversed(specs)])
    theirs = AdamW(other.forward)
    for name, (values, first, second) in kept.items():
        other.write(name, values)
        theirs.write(other.slot(name), first, second)
    for step in range(3, 6):
        for where, optimiser in ((host, ours), (other, theirs)):
            backward(where, specs, step)
            optimiser.step({where.slot(n): Settings(step + 1, 1e-2, 0.1, 0.5) for n in specs})
            optimiser.zero_grad()
    for name in specs:
        for key, value in host.read(name).items():
            torch.testing.assert_close(other.read(name)[key], value, atol=1e-6, rtol=1e-5)


def test_reading_moments_gives_copies():
    host = filled(["lora:rank=2"])
    ours = AdamW(host.forward)
    first, _ = ours.read(host.slot("lora:rank=2"))
    assert not any(t.any() for t in first.values())
    backward(host, ["lora:rank=2"], 0)
    ours.step({host.slot("lora:rank=2"): Settings(1, 1e-2)})
    assert not any(t.any() for t in first.values())
    assert any(t.any() for t in ours.read(host.slot("lora:rank=2"))[0].values())


def test_writing_moments_clears_what_a_wider_adapter_left():
    host = filled(["houlsby:size=8"])
    ours = AdamW(host.forward)
    host.add("other", "houlsby:size=8", labels=2)
    backward(host, ["houlsby:size=8", "other"], 0)
    ours.step({host.slot(n): Settings(1, 1e-2) for n in host.names})
    host.unload("other")
    host.add("narrow", "houlsby:size=5", labels=2)
    slot = host.slot("narrow")
    ours.write(slot, *({n: torch.ones_like(t) for n, t in part.items()} for part in ours.read(slot)))
    for name in ("layers.0.attn.out.down", "layers.0.attn.out.up"):
        stack, (entry, *_) = host.forward.bank.place(slot, name)
        assert ours._moments_of(stack).first[entry].sum() == 5 * 16


@pytest.mark.parametrize("weights", [False, True])
def test_decay_pulls_to_the_base_or_to_zero(weights):
    """Without gradients to speak of: what decays is the difference, or the weights themselves."""
    host = filled(["finetune"])
    slot, lr, decay = host.slot("finetune"), 0.1, 0.5
    before = host.read("finetune")
    for p in host.forward.bank.slot(slot).weights.parameters():
        p.grad = torch.zeros_like(p)
    AdamW(host.forward).step({slot: Settings(1, lr, decay, None, weights)})
    frozen: dict[str, Tensor] = dict(host.base.model.named_parameters())
    for name, value in host.forward.bank.slot(slot).weights.tensors.items():
        whole = frozen[name] + before[name]
        expected = whole * (1 - lr * decay) - frozen[name] if weights else before[name] * (1 - lr * decay)
        torch.testing.assert_close(value.detach(), expected, atol=1e-6, rtol=1e-5)


def test_decay_of_weights_is_plain_adamw_on_the_weights():
    host = filled(["finetune"])
    ours, one = AdamW(host.forward), Settings(0, 1e-2, 0.3, 0.5, True)
    reference = Reference(host, "finetune", one)
    frozen = dict(host.base.model.named_parameters())
    own = [n for n in reference.values if n in frozen]
    with torch.no_grad():
        for name in own:
            reference.values[name] += frozen[name]
    for step in range(6):
        backward(host, ["finetune"], step)
        ours.step({host.slot("finetune"): reference.step()})
        ours.zero_grad()
    now = host.read("finetune")
    trained = [n for n in own if reference.values[n].grad is not None]
    assert len(trained) > 20
    for name in trained:
        torch.testing.assert_close(frozen[name] + now[name], reference.values[name].detach(), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 10, 64, 10_000])
def test_pieces_cover_every_element_once_whatever_the_layout(size):
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (23,), (), (3, 4, 2), (1, 40)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors.append(torch.randn(5, 9, generator=generator).t())
    before = [tensor.clone() for tensor in tensors]
    for piece in _pieces(_Views(tensors, before, before, before), size):
        assert piece.values[0].equal(piece.grads[0])  # no element was seen before
        piece.values[0].add_(1)
    assert all(tensor.equal(old + 1) for tensor, old in zip(tensors, before, strict=True))


def test_a_step_in_pieces_is_the_whole_step_bit_for_bit(monkeypatch):
    def four() -> _Views:
        generator = torch.Generator().manual_seed(0)
        return _Views(*([torch.rand(n, 6, generator=generator) for n in (1, 50, 7)] for _ in range(4)))

    one, scale = Settings(3, 1e-2, 0.1), torch.tensor(0.3)
    whole, pieces = four(), four()
    for views, size in ((whole, 10_000), (pieces, 12)):
        monkeypatch.setattr(adamw, "_pieces", lambda views, size=size: _pieces(views, size))
        for update in adamw._updates_of_tensors(views, one, scale):
            update.apply()
    assert not whole.values[1].equal(four().values[1])
    for a, b in zip(whole, pieces, strict=True):
        assert all(x.equal(y) for x, y in zip(a, b, strict=True))
