"""AdamW over the bank's stacks, with every slot's own settings.

Equal to `torch.optim.AdamW` with `clip_grad_norm_`, run by run: decay, moments, step and clipping are those of the slot
alone, and only slots that are named step. All slots that are neighbours in a stack step in one operation.

Weight decay pulls a *difference* to zero, that is, towards the pretrained weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    gate_lr: float | None = None
    """Given, gates step at it, clipped by themselves and without decay."""


@dataclass
class _Moments:
    stack: Tensor
    first: Tensor
    second: Tensor


_Lane = tuple[int, bool]
"""A slot, and whether it stands for its gates, where these have a learning rate of their own."""


class AdamW:
    """The optimiser of all adapters in a host."""

    def __init__(self, forward: Forward):
        self.forward = forward
        self._moments: dict[int, _Moments] = {}
        self._bounds: tuple[Any, Tensor] = (None, torch.empty(0))
        self._room: tuple[Tensor, Tensor] | None = None

    def plan(self, settings: Mapping[int, Settings]) -> dict[str, Tensor]:
        """The numbers of a step, for the device: settings [slots, 4], and with kernels which chunks are a slot's."""
        lanes = self._lanes(settings)
        rows = [(math.inf if one.clip is None else one.clip, *_factors(one)) for one in lanes.values()]
        tables = {"settings": torch.tensor(rows, dtype=torch.float32)}
        if self.forward.kernels:
            key = (self.forward.bank.version, tuple(lanes))
            if self._bounds[0] != key:
                counts = [self._count(lane, lanes) for lane in lanes]
                self._bounds = key, torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
            tables["bounds"] = self._bounds[1]
        return tables

    def make_room(self, settings: Mapping[int, Settings]) -> None:
        """Memory for the next recording of a step, which may not take any while it is made."""
        lanes = self._lanes(settings)
        shape = (sum(self._count(lane, lanes) for lane in lanes), 6)
        host = torch.empty(shape, dtype=torch.long, pin_memory=True)
        self._room = host, torch.empty(shape, dtype=torch.long, device=self.forward.bank.device)

    @torch.no_grad()
    def step(self, settings: Mapping[int, Settings], tables: Mapping[str, Tensor] | None = None) -> object:
        """Step the slots that are named, from the gradients that are there.

        Args:
            tables: what `plan` made of the settings, on the device.

        Returns what must be kept as long as a recording of this step.
        """
        return self.prepare(settings, tables)()

    @torch.no_grad()
    def prepare(
        self, settings: Mapping[int, Settings], tables: Mapping[str, Tensor] | None = None
    ) -> Callable[[], object]:
        """All of `step` that takes memory. What it gives makes the step and takes none, so that a step is never half
        made; the gradients are used up by it."""
        if tables is not None and "bounds" in tables:
            return self._fused(settings, tables)
        return self._plain(settings)

    def _plain(self, settings: Mapping[int, Settings]) -> Callable[[], object]:
        updates: list[_Update] = []
        runs = [_Run(group, low, high, slots) for group, low, high, slots in self._runs(settings)]
        lanes = self._lanes(settings)
        scale = self._clipping(lanes, runs)
        for run, gates in itertools.product(runs, (False, True)):
            stacks = [s for n, s in run.group.stacks.items() if s.grad is not None and (n in run.group.gates) == gates]
            if stacks:
                own = [lanes[_lane(slot, gates, lanes)] for slot in run.slots]
                numbers = [scale.place[_lane(slot, gates, lanes)] for slot in run.slots]
                places = torch.tensor(numbers, device=scale.of.device)
                updates.append(_of_stacks(self._views(stacks, run.low, run.high), own, scale.of[places]))
        decays: list[tuple[dict[str, nn.Parameter], Settings]] = []
        for slot, parameters in self._weights(settings):
            by_lane: dict[_Lane, dict[str, nn.Parameter]] = {}
            for name, p in parameters.items():
                if p.grad is not None:
                    by_lane.setdefault(_lane(slot, _is_gate(name), lanes), {})[name] = p
            for lane, named in by_lane.items():
                views = self._views(list(named.values()))
                updates += _of_tensors(views, lanes[lane], scale.of[scale.place[lane]])
                decays.append((named, lanes[lane]))

        @torch.no_grad()
        def apply() -> None:
            for update in updates:
                update.apply()
            for named, one in decays:
                self._decay_base(named, one)

        return apply

    def _fused(self, settings: Mapping[int, Settings], tables: Mapping[str, Tensor]) -> Callable[[], object]:
        from inlay.kernels import adamw as fused

        parts = []
        lanes = self._lanes(settings)
        number = {lane: i for i, lane in enumerate(lanes)}
        for group in self.forward.bank.groups.values():
            mine = [(slot, entry) for slot, entry in group.entry_of.items() if slot in settings]
            for name, stack in group.stacks.items():
                if mine and stack.requires_grad:
                    numbers = [number[_lane(slot, name in group.gates, lanes)] for slot, _ in mine]
                    parts.append(fused.rows(self._four(stack), [entry for _, entry in mine], numbers))
        for slot, parameters in self._weights(settings):
            for name, p in parameters.items():
                own = number[_lane(slot, _is_gate(name), lanes)]
                parts.append(fused.rows([t.unsqueeze(0) for t in self._four(p)], [0], [own]))
        chunks = torch.cat(parts)
        chunks = chunks[torch.argsort(chunks[:, -1], stable=True)]
        if self._room is None or not torch.cuda.is_current_stream_capturing():
            self._room = None
            device = chunks.to(self.forward.bank.device)
        else:
            (room, device), self._room = self._room, None
            chunks = room.copy_(chunks)
            device.copy_(chunks, non_blocking=True)
        run = fused.prepare(device, tables["bounds"], tables["settings"], (BETA1, BETA2), EPSILON)

        @torch.no_grad()
        def apply() -> object:
            run()
            for slot, parameters in self._weights(settings):
                plain = {n: p for n, p in parameters.items() if not _is_gate(n) or (slot, True) not in lanes}
                self._decay_base(plain, settings[slot])
            return chunks, device

        return apply

    def _four(self, stack: Tensor) -> list[Tensor]:
        """Value, gradient and moments; a stack whose gradient is missing has one of zeros."""
        moments = self._of(stack)
        grad = torch.zeros_like(stack) if stack.grad is None else stack.grad.contiguous()
        stack.grad = grad  # kept until the kernels have read it
        return [stack.data, grad, moments.first, moments.second]

    def _lanes(self, settings: Mapping[int, Settings]) -> dict[_Lane, Settings]:
        """The settings by lane: every slot, and its gates where they step by themselves."""
        lanes: dict[_Lane, Settings] = {}
        for slot, one in settings.items():
            lanes[slot, False] = one
            if one.gate_lr is not None and self._has_gates(slot):
                lanes[slot, True] = replace(one, lr=one.gate_lr, weight_decay=0.0, decay_weights=False)
        return lanes

    def _has_gates(self, slot: int) -> bool:
        weights = self.forward.weights.get(slot)
        record = self.forward.bank.slot(slot)
        return record.gated if weights is None else any(map(_is_gate, weights.tensors))

    def _count(self, lane: _Lane, lanes: Mapping[_Lane, Settings]) -> int:
        from inlay.kernels.adamw import chunks_of

        slot, bank = lane[0], self.forward.bank
        groups = {id(g): g for g in bank.slot(slot).groups.values()}.values()
        stacks = [(n in g.gates, s[0]) for g in groups for n, s in g.stacks.items() if s.requires_grad]
        if slot in self.forward.weights:
            tensors = self.forward.weights[slot].tensors
            stacks += [(_is_gate(n), t) for n, t in tensors.items() if isinstance(t, nn.Parameter)]
        return sum(chunks_of(s.numel()) for gate, s in stacks if _lane(slot, gate, lanes) == lane)

    def _decay_base(self, parameters: Mapping[str, Tensor], one: Settings) -> None:
        """The difference has decayed; with `decay_weights` the base's own part decays too."""
        if one.decay_weights:
            for name, p in parameters.items():
                p.sub_(self.forward.base.model.get_parameter(name), alpha=one.lr * one.weight_decay)

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

    def read(self, slot: int, device: str | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of a slot's moments at their true sizes, where they are or on a device."""
        entries = self._entries(slot)
        first = {name: m.first[i].to(device, copy=True) for name, (m, i) in entries.items()}
        return first, {name: m.second[i].to(device, copy=True) for name, (m, i) in entries.items()}

    def write(self, slot: int, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Restore what `read` gave; nothing is a fresh start."""
        self.forget(slot)
        for name, (moments, index) in self._entries(slot).items() if first else ():
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

    def _clipping(self, lanes: Mapping[_Lane, Settings], runs: Sequence[_Run]) -> _Scale:
        """What to multiply each lane's gradients with: 1 unless their norm is larger than its limit."""
        place = {lane: i for i, lane in enumerate(lanes)}
        device = self.forward.bank.device
        squares = torch.zeros(len(place), dtype=torch.float32, device=device)
        for run, gates in itertools.product(runs, (False, True)):
            mine = [s for n, s in run.group.stacks.items() if (n in run.group.gates) == gates]
            grads = [s.grad[run.low : run.high] for s in mine if s.grad is not None]
            if grads:
                sums = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).square().sum(0)
                numbers = [place[_lane(slot, gates, lanes)] for slot in run.slots]
                squares[torch.tensor(numbers, device=device)] += sums
        for slot, parameters in self._weights(dict.fromkeys(slot for slot, _ in lanes)):
            for gates in (False, True):
                grads = [p.grad for n, p in parameters.items() if p.grad is not None and _is_gate(n) == gates]
                if grads:
                    squares[place[_lane(slot, gates, lanes)]] += torch.stack(torch._foreach_norm(grads)).square().sum()
        limits = squares.new_tensor([math.inf if one.clip is None else one.clip for one in lanes.values()])
        return _Scale(place, (limits / (squares.sqrt() + 1e-6)).clamp(max=1.0))

    def _runs(self, settings: Mapping[int, Settings]) -> Iterator[tuple[Group, int, int, list[int]]]:
        """(group, first entry, last entry + 1, slots): stretches of neighbouring entries that all step."""
        for group in self.forward.bank.groups.values():
            active = sorted((entry, slot) for slot, entry in group.entry_of.items() if slot in settings)
            start = 0
            for i in range(1, len(active) + 1):
                if i == len(active) or active[i][0] != active[i - 1][0] + 1:
                    yield group, active[start][0], active[i - 1][0] + 1, [slot for _, slot in active[start:i]]
                    start = i

    def _weights(self, settings: Mapping[int, object]) -> Iterator[tuple[int, dict[str, nn.Parameter]]]:
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
            more = stack.new_zeros(missing, *stack.shape[1:])
            first, second = (torch.cat([old, more]) for old in (found.first, found.second))  # both, or none
            found.first, found.second = first, second
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


def _lane(slot: int, gate: bool, lanes: Mapping[_Lane, Settings]) -> _Lane:
    """Where a slot's tensor steps."""
    return (slot, True) if gate and (slot, True) in lanes else (slot, False)


def _is_gate(name: str) -> bool:
    """Of a weight-level adapter's tensor."""
    return name.endswith(".gate")


class _Run(NamedTuple):
    """Neighbouring entries of a group that all step."""

    group: Group
    low: int
    high: int
    slots: list[int]


class _Scale(NamedTuple):
    place: dict[_Lane, int]
    of: Tensor
    """[slots]"""


class _Views(NamedTuple):
    values: list[Tensor]
    grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


@dataclass
class _Update:
    """One step of some tensors, with the memory it needs; the numbers are one, or a column, for every tensor."""

    views: _Views
    scale: Any
    decay: Any
    root: Any
    step: Any
    room: list[Tensor]

    def apply(self) -> None:
        """In place: what is left of the gradients is of no use."""
        values, grads, first, second = self.views
        torch._foreach_mul_(grads, self.scale)
        if self.decay is not None:
            torch._foreach_mul_(values, self.decay)
        torch._foreach_lerp_(first, grads, 1 - BETA1)
        torch._foreach_mul_(second, BETA2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - BETA2)
        torch._foreach_copy_(self.room, second)
        torch._foreach_sqrt_(self.room)
        torch._foreach_div_(self.room, self.root)
        torch._foreach_add_(self.room, EPSILON)
        torch._foreach_copy_(grads, first)
        torch._foreach_mul_(grads, self.step)
        torch._foreach_addcdiv_(values, grads, self.room)


def _of_stacks(views: _Views, own: Sequence[Settings], scale: Tensor) -> _Update:
    """A step of n neighbouring entries in every stack of a group, [n, ...] each."""
    table = torch.tensor([_factors(one) for one in own], dtype=scale.dtype).to(scale.device)
    columns = [scale, *table.unbind(1)]
    shaped = [[c.view(-1, *[1] * (v.dim() - 1)) for v in views.values] for c in columns]
    decay = shaped[1] if any(one.weight_decay for one in own) else None
    return _Update(views, shaped[0], decay, shaped[2], shaped[3], [torch.empty_like(v) for v in views.values])


def _of_tensors(views: _Views, one: Settings, scale: Tensor) -> list[_Update]:
    """A step of a weight-level adapter; on the CPU in pieces, which take turns in one piece's memory."""
    decay, root, step = _factors(one)
    on_cpu = scale.device.type == "cpu"
    parts = list(_pieces(views)) if on_cpu else [views]
    shared = scale.new_empty(max((part.values[0].numel() for part in parts), default=0) if on_cpu else 0)
    updates = []
    for part in parts:
        n = len(part.values)
        room = [shared[: v.numel()].view(v.shape) if on_cpu else torch.empty_like(v) for v in part.values]
        updates.append(_Update(part, scale, [decay] * n if one.weight_decay else None, [root] * n, [step] * n, room))
    return updates


def _pieces(views: _Views, size: int = 2**16) -> Iterator[_Views]:
    """Rows of each tensor, few enough to stay in a core's cache from one operation to the next."""
    for four in zip(*views, strict=True):
        rows = max(1, size * (len(four[0]) if four[0].dim() else 1) // max(1, four[0].numel()))
        whole = [tensor if tensor.dim() else tensor.view(1) for tensor in four]
        for start in range(0, len(whole[0]), rows):
            yield _Views(*([tensor[start : start + rows]] for tensor in whole))


def _factors(one: Settings) -> tuple[float, float, float]:
    """Decay of the value, root of the second moment's correction, step with the first one's."""
    return (1 - one.lr * one.weight_decay, math.sqrt(1 - BETA2**one.step), -one.lr / (1 - BETA1**one.step))
