"""AdamW on CUDA in three kernels, whatever the number of tensors: clip norms, clip factors, the update.

A chunk is a part of one slot's entry in one stack. Its row in the table holds addresses (value, gradient, both
moments), how many numbers it has, and its slot's number, so the kernels need not know about stacks.
"""

# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803 (compile-time arguments are capitals)

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.shared import ADAMW_CHUNK as CHUNK

COLUMNS = 6
"""value, gradient, first moment, second moment, count, slot."""


@triton.jit
def _squares(chunks, partial, CHUNK: tl.constexpr):
    row = chunks + tl.program_id(0) * 6
    grad = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, CHUNK)
    g = tl.load(grad + at, mask=at < tl.load(row + 4), other=0.0)
    tl.store(partial + tl.program_id(0), tl.sum(g * g))


@triton.jit
def _scales(partial, bounds, settings, scale, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    end = tl.load(bounds + slot + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.load(bounds + slot), end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(partial + at, mask=at < end, other=0.0)
    limit = tl.load(settings + slot * 4)
    tl.store(scale + slot, tl.minimum(limit / (tl.sqrt(tl.sum(total)) + 1e-6), 1.0))


@triton.jit
def _update(chunks, scale, settings, beta1, beta2, epsilon, CHUNK: tl.constexpr):
    row = chunks + tl.program_id(0) * 6
    value = tl.load(row).to(tl.pointer_type(tl.float32))
    grad = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    first = tl.load(row + 2).to(tl.pointer_type(tl.float32))
    second = tl.load(row + 3).to(tl.pointer_type(tl.float32))
    slot = tl.load(row + 5)
    decay, root = tl.load(settings + slot * 4 + 1), tl.load(settings + slot * 4 + 2)
    step = tl.load(settings + slot * 4 + 3)
    at = tl.arange(0, CHUNK)
    inside = at < tl.load(row + 4)
    g = tl.load(grad + at, mask=inside, other=0.0) * tl.load(scale + slot)
    m = tl.load(first + at, mask=inside, other=0.0)
    m += (g - m) * (1 - beta1)
    v = tl.load(second + at, mask=inside, other=0.0) * beta2 + g * g * (1 - beta2)
    p = tl.load(value + at, mask=inside, other=0.0) * decay
    p += m * step / (tl.sqrt(v) / root + epsilon)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    tl.store(value + at, p, mask=inside)


def step(chunks: Tensor, bounds: Tensor, settings: Tensor, betas: tuple[float, float], epsilon: float) -> None:
    """One step of all chunks; see `prepare`."""
    prepare(chunks, bounds, settings, betas, epsilon)()


def prepare(
    chunks: Tensor, bounds: Tensor, settings: Tensor, betas: tuple[float, float], epsilon: float
) -> Callable[[], None]:
    """Allocate the memory for one step of all chunks; the function it returns takes the step.

    Args:
        chunks: int64 [n, COLUMNS], the chunks of a slot one after the other.
        bounds: int32 [slots + 1], the chunks of every slot.
        settings: float32 [slots, 4]: clip limit, decay factor, root of the second moment's correction, step.
    """
    slots = len(bounds) - 1
    partial = torch.empty(len(chunks), dtype=torch.float32, device=chunks.device)
    scale = torch.empty(slots, dtype=torch.float32, device=chunks.device)

    def run() -> None:
        with torch.cuda.device_of(chunks):
            _squares[(len(chunks),)](chunks, partial, CHUNK=CHUNK)
            _scales[(slots,)](partial, bounds, settings, scale, BLOCK=1024)
            _update[(len(chunks),)](chunks, scale, settings, *betas, epsilon, CHUNK=CHUNK, num_warps=8)

    return run


def rows(stacks: Sequence[Tensor], entries: Sequence[int], slots: Sequence[int]) -> Tensor:
    """[n, COLUMNS] the chunks of these entries of a stack.

    Args:
        stacks: [E, ...] value, gradient and both moments.
        entries: the entries that take the step.
        slots: the number of each entry's slot.
    """
    size = stacks[0][0].numel()
    starts = torch.arange(0, size, CHUNK)
    places = torch.tensor(entries).unsqueeze(1) * size + starts
    columns = [tensor.data_ptr() + 4 * places for tensor in stacks]
    columns += [(size - starts).clamp(max=CHUNK).expand_as(places), torch.tensor(slots).unsqueeze(1).expand_as(places)]
    return torch.stack(columns, -1).flatten(0, 1)
