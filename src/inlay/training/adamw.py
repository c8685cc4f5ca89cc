"""AdamW over the bank's stacks, with every slot's own settings.

Equal to `torch.optim.AdamW` with `clip_grad_norm_`, run by run: decay, moments, step and clipping are those of the slot
alone, and only the slots given step. All slots that are neighbours in a stack step in one operation.

Weight decay pulls a *difference* to zero, that is, towards the pretrained weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from inlay.bank.bank import Trained
from inlay.bank.forward import Forward
from inlay.bank.records import A, Record, host, on_device
from inlay.base.copies import to_cpu
from inlay.data.batch import Array
from inlay.kernels.shared import ADAMW_CHUNK

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


@dataclass(frozen=True, eq=False)
class UpdatePlan(Record, Generic[A]):
    """The numbers of a step."""

    settings: A
    """[lanes, 4] clip limit, decay factor, root of the second moment's correction, step."""
    bounds: A | None
    """[lanes + 1] with kernels: which chunks belong to a lane."""
    where: tuple[Hashable, ...]
    """What steps: the entries of every lane, or the slot of a weight-level adapter."""
    of_slot: Mapping[int, Settings] = host()


class AdamW:
    """The optimiser of all adapters in a host."""

    def __init__(self, forward: Forward):
        self.forward = forward
        self.bank = forward.bank
        self._moments: dict[int, _Moments] = {}
        self._known: tuple[Hashable, Array, tuple[Hashable, ...]] = (None, np.zeros(0), ())
        self._room: tuple[Tensor, Tensor] | None = None

    def plan(self, settings: Mapping[int, Settings]) -> UpdatePlan[Array]:
        """A step of these slots."""
        lanes = self._lanes(settings)
        rows = [(math.inf if s.clip is None else s.clip, *_factors(s)) for s in lanes.values()]
        key = (self.bank.changes, tuple(lanes))
        if self._known[0] != key:
            self._known = key, *self._places(lanes)
        _, bounds, where = self._known
        with np.errstate(over="ignore"):  # of a run that diverges
            numbers = np.array(rows).astype(np.float32)
        return UpdatePlan(numbers, bounds if self.forward.kernels else None, where, settings)

    def make_room(self, settings: Mapping[int, Settings]) -> None:
        """Memory for the next recording of a step, which may not take any while it is made."""
        shape = (int(self._places(self._lanes(settings))[0][-1]), 6)
        host = torch.empty(shape, dtype=torch.long, pin_memory=True)
        self._room = host, torch.empty(shape, dtype=torch.long, device=self.bank.device)

    @torch.no_grad()
    def step(self, settings: Mapping[int, Settings]) -> object:
        """Step these slots, with the gradients that are there."""
        plan: UpdatePlan[Tensor] = on_device(self.plan(settings), self.bank.device)
        return self.prepare(plan)()

    @torch.no_grad()
    def prepare(self, plan: UpdatePlan[Tensor]) -> Callable[[], object]:
        """Do all of a step that takes memory. The function returned makes the step and takes none, so that a step is
        never half made; it uses up the gradients, and returns what must live as long as a recording of the step.
        """
        if plan.bounds is not None:
            return self._fused(plan.of_slot, plan.bounds, plan.settings)
        return self._plain(plan.of_slot)

    def _plain(self, settings: Mapping[int, Settings]) -> Callable[[], object]:
        updates: list[_Update] = []
        decays: list[tuple[dict[str, nn.Parameter], Settings]] = []
        lanes = self._lanes(settings)
        trained = self.bank.trained(settings)
        number_of = {lane: i for i, lane in enumerate(lanes)}
        scale = self._clipping(lanes, trained)
        for stacks in trained:
            own_lanes = _lanes_of(stacks, lanes)
            with_grad = {name: t for name, t in stacks.tensors.items() if t.grad is not None}
            if not with_grad:
                continue
            if stacks.entries is None:
                (lane,) = own_lanes
                views = self._views(list(with_grad.values()))
                updates += _updates_of_tensors(views, lanes[lane], scale[number_of[lane]])
                decays.append((with_grad, lanes[lane]))
                continue
            for low, high, start in _stretches(stacks.entries):
                lanes_here = own_lanes[start : start + high - low]
                places = torch.tensor([number_of[lane] for lane in lanes_here], device=scale.device)
                views = self._views(list(with_grad.values()), low, high)
                updates.append(_update_of_stacks(views, [lanes[lane] for lane in lanes_here], scale[places]))

        @torch.no_grad()
        def apply() -> None:
            for update in updates:
                update.apply()
            for named, slot_settings in decays:
                self._decay_base(named, slot_settings)

        return apply

    def _fused(self, settings: Mapping[int, Settings], bounds: Tensor, numbers: Tensor) -> Callable[[], object]:
        from inlay.kernels import adamw as fused

        lanes = self._lanes(settings)
        number_of = {lane: i for i, lane in enumerate(lanes)}
        parts, decays = [], []
        for stacks in self.bank.trained(settings):
            lane_numbers = [number_of[lane] for lane in _lanes_of(stacks, lanes)]
            for tensor in stacks.tensors.values():
                four = self._kernel_tensors(tensor)
                if stacks.entries is None:
                    parts.append(fused.rows([t.unsqueeze(0) for t in four], [0], lane_numbers))
                else:
                    parts.append(fused.rows(four, stacks.entries, lane_numbers))
            if stacks.entries is None:
                decays.append((stacks.tensors, lanes[_lanes_of(stacks, lanes)[0]]))
        chunks = torch.cat(parts)
        chunks = chunks[torch.argsort(chunks[:, -1], stable=True)]
        if self._room is None or not torch.cuda.is_current_stream_capturing():
            self._room = None
            device = chunks.to(self.bank.device)
        else:
            (room, device), self._room = self._room, None
            chunks = room.copy_(chunks)
            device.copy_(chunks, non_blocking=True)
        run = fused.prepare(device, bounds, numbers, (BETA1, BETA2), EPSILON)

        @torch.no_grad()
        def apply() -> object:
            run()
            for named, slot_settings in decays:
                self._decay_base(named, slot_settings)
            return chunks, device

        return apply

    def _kernel_tensors(self, stack: Tensor) -> list[Tensor]:
        """Value, gradient and moments; a stack whose gradient is missing has one of zeros."""
        moments = self._moments_of(stack)
        grad = torch.zeros_like(stack) if stack.grad is None else stack.grad.contiguous()
        stack.grad = grad  # kept until the kernels have read it
        return [stack.data, grad, moments.first, moments.second]

    def _lanes(self, settings: Mapping[int, Settings]) -> dict[_Lane, Settings]:
        """The settings by lane: every slot, and its gates where they step by themselves."""
        lanes: dict[_Lane, Settings] = {}
        for slot, s in settings.items():
            lanes[slot, False] = s
            if s.gate_lr is not None and self.bank.slot(slot).has_gates:
                lanes[slot, True] = replace(s, lr=s.gate_lr, weight_decay=0.0, decay_weights=False)
        return lanes

    def _places(self, lanes: Mapping[_Lane, Settings]) -> tuple[Array, tuple[Hashable, ...]]:
        """[lanes + 1] which chunks belong to a lane, and where every lane's numbers are."""
        chunks = dict.fromkeys(lanes, 0)
        places: dict[_Lane, list[Hashable]] = {lane: [] for lane in lanes}
        for stacks in self.bank.trained({slot for slot, _ in lanes}):
            sizes = [t.numel() if stacks.entries is None else t[0].numel() for t in stacks.tensors.values()]
            for i, (slot, lane) in enumerate(zip(stacks.slots, _lanes_of(stacks, lanes), strict=True)):
                chunks[lane] += sum(-(-size // ADAMW_CHUNK) for size in sizes)
                home = slot if stacks.entries is None else (id(next(iter(stacks.tensors.values()))), stacks.entries[i])
                places[lane].append(home)
        bounds = np.array([0, *itertools.accumulate(chunks.values())])
        return bounds, tuple(map(tuple, places.values()))

    def _decay_base(self, parameters: Mapping[str, Tensor], settings: Settings) -> None:
        """The difference has decayed; with `decay_weights` the base's own part decays too."""
        if settings.decay_weights:
            for name, p in parameters.items():
                p.sub_(self.forward.base.model.get_parameter(name), alpha=settings.lr * settings.weight_decay)

    def forget(self, slot: int) -> None:
        """A slot starts anew. All of its entry is cleared: the adapter that was there before may have been wider."""
        for moments, index in self._entries(slot).values():
            moments.first[index[0]].zero_()
            moments.second[index[0]].zero_()

    def drop_unused(self) -> None:
        """Drop the moments of stacks that no longer exist."""
        alive = {id(p) for p in self.bank.parameters()}
        self._moments = {key: moments for key, moments in self._moments.items() if key in alive}

    def read(self, slot: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of a slot's moments at their true sizes, on the CPU."""
        entries = self._entries(slot)
        first = to_cpu({name: m.first[i] for name, (m, i) in entries.items()})
        return first, to_cpu({name: m.second[i] for name, (m, i) in entries.items()})

    def write(self, slot: int, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Restore what `read` gave; empty dictionaries make a fresh start."""
        self.forget(slot)
        for name, (moments, index) in self._entries(slot).items() if first else ():
            moments.first[index] = first[name].to(moments.first.device)
            moments.second[index] = second[name].to(moments.second.device)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in self.bank.parameters():
            p.grad = None

    def _clipping(self, lanes: Mapping[_Lane, Settings], trained: Sequence[Trained]) -> Tensor:
        """[lanes] what to multiply a lane's gradients with: 1 unless their norm is above its limit."""
        number_of = {lane: i for i, lane in enumerate(lanes)}
        device = self.bank.device
        squares = torch.zeros(len(number_of), dtype=torch.float32, device=device)
        for stacks in trained:
            lane_numbers = [number_of[lane] for lane in _lanes_of(stacks, lanes)]
            grads = [t.grad for t in stacks.tensors.values() if t.grad is not None]
            if grads and stacks.entries is None:
                squares[lane_numbers[0]] += torch.stack(torch._foreach_norm(grads)).square().sum()
            elif grads and stacks.entries is not None:
                for low, high, start in _stretches(stacks.entries):
                    sums = torch.stack([g[low:high].flatten(1).norm(dim=1) for g in grads]).square().sum(0)
                    squares[torch.tensor(lane_numbers[start : start + high - low], device=device)] += sums
        limits = squares.new_tensor([math.inf if s.clip is None else s.clip for s in lanes.values()])
        return (limits / (squares.sqrt() + 1e-6)).clamp(max=1.0)

    def _views(self, stacks: Sequence[Tensor], low: int | None = None, high: int | None = None) -> _Views:
        """Values, gradients and moments, of a stretch of entries or whole."""
        moments = [self._moments_of(stack) for stack in stacks]
        cut = slice(low, high)
        return _Views(
            [stack.data[cut] for stack in stacks],
            [stack.grad[cut] for stack in stacks if stack.grad is not None],
            [m.first[cut] for m in moments],
            [m.second[cut] for m in moments],
        )

    def _moments_of(self, stack: Tensor) -> _Moments:
        """A stack's moments; they grow when it has grown."""
        moments = self._moments.get(id(stack))
        if moments is None or moments.stack is not stack:
            moments = self._moments[id(stack)] = _Moments(stack, torch.zeros_like(stack), torch.zeros_like(stack))
        missing = stack.shape[0] - moments.first.shape[0]
        if missing:
            zeros = stack.new_zeros(missing, *stack.shape[1:])
            first, second = (torch.cat([old, zeros]) for old in (moments.first, moments.second))  # both, or none
            moments.first, moments.second = first, second
        return moments

    def _entries(self, slot: int) -> dict[str, tuple[_Moments, tuple[Any, ...]]]:
        places = self.bank.places(slot).items()
        return {name: (self._moments_of(stack), index) for name, (stack, index) in places if stack.requires_grad}


def _stretches(entries: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first entry, last entry + 1, position of the first) for every stretch of neighbours in sorted entries."""
    start = 0
    for i in range(1, len(entries) + 1):
        if i == len(entries) or entries[i] != entries[i - 1] + 1:
            yield entries[start], entries[i - 1] + 1, start
            start = i


def _lanes_of(stacks: Trained, lanes: Mapping[_Lane, Settings]) -> list[_Lane]:
    """The lane of each slot in these stacks."""
    return [(slot, stacks.are_gates and (slot, True) in lanes) for slot in stacks.slots]


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
        """In place; the gradients are used up."""
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


def _update_of_stacks(views: _Views, settings: Sequence[Settings], scale: Tensor) -> _Update:
    """A step of n neighbouring entries in every stack of a group, [n, ...] each."""
    table = torch.tensor([_factors(s) for s in settings], dtype=scale.dtype).to(scale.device)
    columns = [scale, *table.unbind(1)]
    shaped = [[c.view(-1, *[1] * (v.dim() - 1)) for v in views.values] for c in columns]
    decay = shaped[1] if any(s.weight_decay for s in settings) else None
    return _Update(views, shaped[0], decay, shaped[2], shaped[3], [torch.empty_like(v) for v in views.values])


def _updates_of_tensors(views: _Views, settings: Settings, scale: Tensor) -> list[_Update]:
    """A step of a weight-level adapter; on the CPU in pieces, which take turns in one piece's memory."""
    decay, root, step = _factors(settings)
    on_cpu = scale.device.type == "cpu"
    parts = list(_pieces(views)) if on_cpu else [views]
    shared = scale.new_empty(max((part.values[0].numel() for part in parts), default=0) if on_cpu else 0)
    updates = []
    for part in parts:
        n = len(part.values)
        room = [shared[: v.numel()].view(v.shape) if on_cpu else torch.empty_like(v) for v in part.values]
        decays = [decay] * n if settings.weight_decay else None
        updates.append(_Update(part, scale, decays, [root] * n, [step] * n, room))
    return updates


def _pieces(views: _Views, size: int = 2**16) -> Iterator[_Views]:
    """Rows of each tensor, few enough to stay in a core's cache from one operation to the next."""
    for four in zip(*views, strict=True):
        rows = max(1, size * (len(four[0]) if four[0].dim() else 1) // max(1, four[0].numel()))
        whole = [tensor if tensor.dim() else tensor.view(1) for tensor in four]
        for start in range(0, len(whole[0]), rows):
            yield _Views(*([tensor[start : start + rows]] for tensor in whole))


def _factors(settings: Settings) -> tuple[float, float, float]:
    """Decay of the value, root of the second moment's correction, step with the first one's."""
    lr, step = settings.lr, settings.step
    return (1 - lr * settings.weight_decay, math.sqrt(1 - BETA2**step), -lr / (1 - BETA1**step))
