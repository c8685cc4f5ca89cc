"""AdamW over the bank's stacks, with every slot's own settings.

Equal to `torch.optim.AdamW` with `clip_grad_norm_`, run by run: decay, moments, step and clipping are those of the slot
alone, and only slots that are named step. All slots that are neighbours in a stack step in one operation.

Weight decay pulls a *difference* to zero, that is, towards the pretrained weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
        self._bounds: tuple[Any, Tensor] = (None, torch.empty(0))
        self._room: tuple[Tensor, Tensor] | None = None

    def plan(self, settings: Mapping[int, Settings]) -> dict[str, Tensor]:
        """The numbers of a step, for the device: settings [slots, 4], and with kernels which chunks are a slot's."""
        limits = [math.inf if one.clip is None else one.clip for one in settings.values()]
        rows = [(limit, *_factors(one)) for limit, one in zip(limits, settings.values(), strict=True)]
        tables = {"settings": torch.tensor(rows, dtype=torch.float32)}
        if self.forward.kernels:
            key = (self.forward.bank.version, tuple(settings))
            if self._bounds[0] != key:
                counts = [self._count(slot) for slot in settings]
                self._bounds = key, torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
            tables["bounds"] = self._bounds[1]
        return tables

    def make_room(self, settings: Mapping[int, Settings]) -> None:
        """Memory for the next recording of a step, which may not take any while it is made."""
        shape = (sum(self._count(slot) for slot in settings), 6)
        host = torch.empty(shape, dtype=torch.long, pin_memory=True)
        self._room = host, torch.empty(shape, dtype=torch.long, device=self.forward.bank.device)

    @torch.no_grad()
    def step(self, settings: Mapping[int, Settings], tables: Mapping[str, Tensor] | None = None) -> object:
        """Step the slots that are named, from the gradients that are there.

        Args:
            tables: what `plan` made of the settings, on the device.

        Returns what must be kept as long as a recording of this step.
        """
        if tables is not None and "bounds" in tables:
            return self._fused(settings, tables)
        self._plain(settings)
        return None

    def _plain(self, settings: Mapping[int, Settings]) -> None:
        runs = [_Run(group, low, high, slots) for group, low, high, slots in self._runs(settings)]
        scale = self._clipping(settings, runs)
        for run in runs:
            stacks = [stack for stack in run.group.stacks.values() if stack.grad is not None]
            if stacks:
                own = [settings[slot] for slot in run.slots]
                places = torch.tensor([scale.place[slot] for slot in run.slots], device=scale.of.device)
                _update_stacks(self._views(stacks, run.low, run.high), own, scale.of[places])
        for slot, parameters in self._weights(settings):
            named = {name: p for name, p in parameters.items() if p.grad is not None}
            _update_tensors(self._views(list(named.values())), settings[slot], scale.of[scale.place[slot]])
            self._decay_base(named, settings[slot])

    def _fused(self, settings: Mapping[int, Settings], tables: Mapping[str, Tensor]) -> object:
        from inlay.training import fused

        parts = []
        number = {slot: i for i, slot in enumerate(settings)}
        for group in self.forward.bank.groups.values():
            mine = [(entry, number[slot]) for slot, entry in group.entry_of.items() if slot in number]
            for stack in (s for s in group.stacks.values() if mine and s.requires_grad):
                parts.append(fused.rows(self._four(stack), *zip(*mine, strict=True)))
        for slot, parameters in self._weights(settings):
            parts += [
                fused.rows([t.unsqueeze(0) for t in self._four(p)], [0], [number[slot]]) for p in parameters.values()
            ]
        chunks = torch.cat(parts)
        chunks = chunks[torch.argsort(chunks[:, -1], stable=True)]
        if self._room is None or not torch.cuda.is_current_stream_capturing():
            self._room = None
            device = chunks.to(self.forward.bank.device)
        else:
            (room, device), self._room = self._room, None
            chunks = room.copy_(chunks)
            device.copy_(chunks, non_blocking=True)
        fused.step(device, tables["bounds"], tables["settings"], (BETA1, BETA2), EPSILON)
        for slot, parameters in self._weights(settings):
            self._decay_base(parameters, settings[slot])
        return chunks, device

    def _four(self, stack: Tensor) -> list[Tensor]:
        """Value, gradient and moments; a stack whose gradient is missing has one of zeros."""
        moments = self._of(stack)
        grad = torch.zeros_like(stack) if stack.grad is None else stack.grad.contiguous()
        stack.grad = grad  # kept until the kernels have read it
        return [stack.data, grad, moments.first, moments.second]

    def _count(self, slot: int) -> int:
        from inlay.training.fused import chunks_of

        bank = self.forward.bank
        groups = {id(g): g for g in bank.slot(slot).groups.values()}.values()
        stacks = [s[0] for group in groups for s in group.stacks.values() if s.requires_grad]
        if slot in self.forward.weights:
            stacks += self.forward.weights[slot].parameters()
        return sum(chunks_of(s.numel()) for s in stacks)

    def _decay_base(self, parameters: Mapping[str, Tensor], one: Settings) -> None:
        """The difference has decayed; with `decay_weights` the base's own part decays too."""
        if one.decay_weights:
            for name, p in parameters.items():
                p.sub_(self.forward.base.model.get_parameter(name).to(p), alpha=one.lr * one.weight_decay)

    def forget(self, slot: int) -> None:
        """A slot starts anew. All of its entry is cleared: whoever was there before may have been wider."""
        for moments, index in self._entries(slot).values():
            moments.first[index[0]].zero_()
            moments.second[index[0]].zero_()

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
        self.forget(slot)
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

    def _clipping(self, settings: Mapping[int, Settings], runs: Sequence[_Run]) -> _Scale:
        """What to multiply each slot's gradients with: 1 unless their norm is larger than its limit."""
        place = {slot: i for i, slot in enumerate(settings)}
        device = self.forward.bank.device
        squares = torch.zeros(len(place), device=device)
        for run in runs:
            grads = [s.grad[run.low : run.high] for s in run.group.stacks.values() if s.grad is not None]
            if grads:
                sums = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).square().sum(0)
                squares[torch.tensor([place[slot] for slot in run.slots], device=device)] += sums
        for slot, parameters in self._weights(settings):
            grads = [p.grad for p in parameters.values() if p.grad is not None]
            if grads:
                squares[place[slot]] += torch.stack(torch._foreach_norm(grads)).square().sum()
        limits = [math.inf if one.clip is None else one.clip for one in settings.values()]
        return _Scale(place, (torch.tensor(limits, device=device) / (squares.sqrt() + 1e-6)).clamp(max=1.0))

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

    def _views(self, stacks: Sequence[Tensor], low: int | None = None, high: int | None = None) -> _Views:
        """Values, gradients and moments, of a stretch of entries or whole."""
        moments = [self._of(stack) for stack in stacks]
        cut = slice(low, high)
        return _Views(
            [stack.data[cut] for stack in stacks],
            [stack.grad[cut] for stack in stacks if stack.grad is not None],
            [m.first[cut] for m in moments],
            [m.second[cut] for m in moments],
        )

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


class _Run(NamedTuple):
    """Neighbouring entries of a group that all step."""

    group: Group
    low: int
    high: int
    slots: list[int]


class _Scale(NamedTuple):
    place: dict[int, int]
    of: Tensor
    """[slots]"""


class _Views(NamedTuple):
    values: list[Tensor]
    grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


def _update_stacks(views: _Views, own: Sequence[Settings], scale: Tensor) -> None:
    """One step of n neighbouring entries in every stack of a group, [n, ...] each."""
    table = torch.tensor([_factors(one) for one in own], dtype=scale.dtype).to(scale.device)
    columns = [scale, *table.unbind(1)]
    shaped = [[c.view(-1, *[1] * (v.dim() - 1)) for v in views.values] for c in columns]
    grads = torch._foreach_mul(views.grads, shaped[0])
    decay = shaped[1] if any(one.weight_decay for one in own) else None
    _adamw(views, grads, decay, shaped[2], shaped[3])


def _update_tensors(views: _Views, one: Settings, scale: Tensor) -> None:
    """One step of a weight-level adapter."""
    decay, root, step = _factors(one)
    for part in _pieces(views) if scale.device.type == "cpu" else (views,):
        n = len(part.values)
        grads = torch._foreach_mul(part.grads, scale)
        _adamw(part, grads, [decay] * n if one.weight_decay else None, [root] * n, [step] * n)


def _pieces(views: _Views, size: int = 2**16) -> Iterator[_Views]:
    """Rows of each tensor, few enough to stay in a core's cache from one operation to the next."""
    for four in zip(*views, strict=True):
        rowed = [tensor if tensor.dim() else tensor.view(1) for tensor in four]
        rows = max(1, size * len(rowed[0]) // max(1, rowed[0].numel()))
        for piece in zip(*(torch.split(tensor, rows) for tensor in rowed), strict=True):
            yield _Views(*([tensor] for tensor in piece))


def _factors(one: Settings) -> tuple[float, float, float]:
    """Decay of the value, root of the second moment's correction, step with the first one's."""
    return (1 - one.lr * one.weight_decay, math.sqrt(1 - BETA2**one.step), -one.lr / (1 - BETA1**one.step))


def _adamw(views: _Views, grads: tuple[Tensor, ...], decay: Any, root: Any, step: Any) -> None:
    """The update itself; the last three are a number or a column for every tensor."""
    if decay is not None:
        torch._foreach_mul_(views.values, decay)
    torch._foreach_lerp_(views.first, grads, 1 - BETA1)
    torch._foreach_mul_(views.second, BETA2)
    torch._foreach_addcmul_(views.second, grads, grads, value=1 - BETA2)
    size = torch._foreach_sqrt(views.second)
    torch._foreach_div_(size, root)
    torch._foreach_add_(size, EPSILON)
    torch._foreach_addcdiv_(views.values, torch._foreach_mul(views.first, step), size)
