"""AdamW over the bank's stacks, with every slot's own settings.

Equal to `torch.optim.AdamW` with `clip_grad_norm_`, run by run: decay, moments, step and clipping are those of the slot
alone, and only slots that are named step. All slots that are neighbours in a stack step in one operation.

Weight decay pulls a *difference* to zero, that is, towards the pretrained weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.bank.bank import Group
from inlay.bank.forward import Forward

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Settings:
    """One slot's settings for one step."""

    step: int
    """How many steps it has taken, this one included."""
    lr: float
    weight_decay: float = 0.0
    clip: float | None = None
    decay_weights: bool = False
    """Decay the base's weights plus the difference, not the difference alone; for weight-level adapters."""


@dataclass
class _Moments:
    stack: Tensor
    first: Tensor
    second: Tensor


class AdamW:
    """The optimiser of all adapters in a host."""

    def __init__(self, forward: Forward):
        self.forward = forward
        self._moments: dict[int, _Moments] = {}

    @torch.no_grad()
    def step(self, settings: Mapping[int, Settings]) -> None:
        """Step the slots that are named, from the gradients that are there."""
        scale = self._clipping(settings)
        for group, low, high, slots in self._runs(settings):
            own = [settings[slot] for slot in slots]
            for stack in group.stacks.values():
                if stack.grad is not None:
                    moments = self._of(stack)
                    first, second = moments.first[low:high], moments.second[low:high]
                    clipping = [scale[slot] for slot in slots]
                    _update(stack.data[low:high], stack.grad[low:high], first, second, own, clipping)
        for slot, parameters in self._weights(settings):
            for name, p in parameters.items():
                if p.grad is not None:
                    moments, one = self._of(p), settings[slot]
                    if one.decay_weights:
                        p.sub_(self._frozen(name).to(p), alpha=one.lr * one.weight_decay)
                    first, second = moments.first.unsqueeze(0), moments.second.unsqueeze(0)
                    _update(p.data.unsqueeze(0), p.grad.unsqueeze(0), first, second, [one], [scale[slot]])

    def forget(self, slot: int) -> None:
        """A slot starts anew, or is about to leave."""
        for moments, index in self._entries(slot).values():
            moments.first[index].zero_()
            moments.second[index].zero_()

    def drop_unused(self) -> None:
        """Let go of the moments of stacks that no longer exist."""
        alive = {id(s) for g in self.forward.bank.groups.values() for s in g.stacks.values()}
        alive |= {id(p) for w in self.forward.weights.values() for p in w.parameters()}
        self._moments = {key: moments for key, moments in self._moments.items() if key in alive}

    def read(self, slot: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of a slot's moments at their true sizes."""
        entries = self._entries(slot)
        first = {name: m.first[i].clone() for name, (m, i) in entries.items()}
        return first, {name: m.second[i].clone() for name, (m, i) in entries.items()}

    def write(self, slot: int, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Restore what `read` gave."""
        for name, (moments, index) in self._entries(slot).items():
            moments.first[index] = first[name].to(moments.first.device)
            moments.second[index] = second[name].to(moments.second.device)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.forward.bank.groups.values():
            for stack in group.stacks.values():
                stack.grad = None
        for weights in self.forward.weights.values():
            for p in weights.parameters():
                p.grad = None

    def _clipping(self, settings: Mapping[int, Settings]) -> dict[int, Tensor | None]:
        """What to multiply each slot's gradients with; None for slots that are not clipped."""
        squares: dict[int, list[Tensor]] = {slot: [] for slot, one in settings.items() if one.clip is not None}
        for group, low, high, slots in self._runs(settings):
            for stack in group.stacks.values():
                if stack.grad is not None:
                    sums = stack.grad[low:high].flatten(1).norm(dim=1).square()
                    for i, slot in enumerate(slots):
                        if slot in squares:
                            squares[slot].append(sums[i])
        for slot, parameters in self._weights(settings):
            if slot in squares:
                squares[slot] += [p.grad.norm().square() for p in parameters.values() if p.grad is not None]
        scale: dict[int, Tensor | None] = dict.fromkeys(settings)
        for slot, found in squares.items():
            if found:
                clip = settings[slot].clip
                assert clip is not None
                scale[slot] = (clip / (torch.stack(found).sum().sqrt() + 1e-6)).clamp(max=1.0)
        return scale

    def _runs(self, settings: Mapping[int, Settings]) -> Iterator[tuple[Group, int, int, list[int]]]:
        """(group, first entry, last entry + 1, slots): stretches of neighbouring entries that all step."""
        for group in self.forward.bank.groups.values():
            active = sorted((entry, slot) for slot, entry in group.entry_of.items() if slot in settings)
            start = 0
            for i in range(1, len(active) + 1):
                if i == len(active) or active[i][0] != active[i - 1][0] + 1:
                    yield group, active[start][0], active[i - 1][0] + 1, [slot for _, slot in active[start:i]]
                    start = i

    def _weights(self, settings: Mapping[int, Settings]) -> Iterator[tuple[int, dict[str, nn.Parameter]]]:
        for slot in settings:
            if slot in self.forward.weights:
                tensors = self.forward.weights[slot].tensors
                yield slot, {n: t for n, t in tensors.items() if isinstance(t, nn.Parameter)}

    def _frozen(self, name: str) -> Tensor:
        """The base's own parameter that an adapter's tensor is a difference of."""
        return self.forward.base.model.get_parameter(name)

    def _of(self, stack: Tensor) -> _Moments:
        """A stack's moments; they grow when it has grown."""
        found = self._moments.get(id(stack))
        if found is None or found.stack is not stack:
            found = self._moments[id(stack)] = _Moments(stack, torch.zeros_like(stack), torch.zeros_like(stack))
        missing = stack.shape[0] - found.first.shape[0]
        if missing:
            for name in ("first", "second"):
                old = getattr(found, name)
                setattr(found, name, torch.cat([old, old.new_zeros(missing, *old.shape[1:])]))
        return found

    def _entries(self, slot: int) -> dict[str, tuple[_Moments, tuple[int | slice, ...]]]:
        bank = self.forward.bank
        found: dict[str, tuple[_Moments, tuple[int | slice, ...]]] = {}
        for name, param in bank.slot(slot).params.items():
            if param.role != "constant":
                stack, index = bank.entry(slot, name)
                found[name] = (self._of(stack), index)
        if slot in self.forward.weights:
            for name, p in self.forward.weights[slot].tensors.items():
                if isinstance(p, nn.Parameter):
                    found[name] = (self._of(p), (slice(None),))
        return found


def _update(
    p: Tensor, grad: Tensor, first: Tensor, second: Tensor, own: list[Settings], scale: list[Tensor | None]
) -> None:
    """One step of n neighbouring entries, [n, ...] each."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=p.dtype, device=p.device).view(-1, *[1] * (p.dim() - 1))

    if any(one is not None for one in scale):
        one = torch.ones((), dtype=p.dtype, device=p.device)
        grad = grad * torch.stack([one if s is None else s for s in scale]).view(-1, *[1] * (p.dim() - 1))
    if any(s.weight_decay for s in own):
        p.mul_(column([1 - s.lr * s.weight_decay for s in own]))
    first.lerp_(grad, 1 - BETA1)
    second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    root = second.sqrt().div_(column([math.sqrt(1 - BETA2**s.step) for s in own])).add_(EPSILON)
    p.addcdiv_(first * column([-s.lr / (1 - BETA1**s.step) for s in own]), root)
