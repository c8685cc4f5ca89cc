"""Attention for short rows against a softmax in fp64, row by row; in triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from interpreted import CUDA, DEVICE
from torch import Tensor

from inlay.kernels import short_attention
from inlay.kernels.short_attention import attention, takes

# the interpreter multiplies bf16 as if it were integers
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3} | ({torch.bfloat16: 2e-2} if CUDA else {})
LENGTHS = [5, 0, 1, 33, 70, 0]


def boundaries(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device=DEVICE, dtype=torch.int32)


def numbers(lengths: Sequence[int], d: int, dtype: torch.dtype = torch.float32, heads: int = 2) -> list[Tensor]:
    """q, k, v and the result's gradient."""
    random = torch.Generator().manual_seed(sum(lengths) + d)
    return [torch.randn(sum(lengths), heads, d, generator=random).to(DEVICE, dtype) for _ in range(4)]


def exact(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    lengths: Sequence[int],
    scale: float,
    causal: bool,
    window: int,
    bias: Tensor | None = None,
) -> list[Tensor]:
    """The result and the gradients of q, k, v and, if there is one, the bias in fp64."""
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v, bias) if t is not None]
    q, k, v, *biases = leaves
    rows, start = [], 0
    for length in lengths:
        own = slice(start, start + length)
        start += length
        scores = torch.einsum("ihd,jhd->hij", q[own], k[own]) * scale
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        for table in biases:
            scores = scores + table[:, (table.shape[1] // 2 - distance).to(DEVICE)]
        hidden = torch.zeros(length, length, dtype=torch.bool)
        if causal:
            hidden |= distance < 0
        if window >= 0:
            hidden |= distance.abs() > window
        scores = scores.masked_fill(hidden.to(DEVICE), -torch.inf)
        rows.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v[own]))
    out = torch.cat(rows)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


def ours(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lengths: Sequence[int], scale: float, causal: bool, window: int
) -> list[Tensor]:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = attention(q, k, v, boundaries(lengths), scale, causal, window)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def far(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error, as a share of the largest number; NaN if there is one."""
    pairs = zip(found, expected, strict=True)
    errors = [(a.double() - b).abs().max() / b.abs().max().clamp_min(1.0) for a, b in pairs]
    return torch.stack(errors).max().item()


def check(tensors: Sequence[Tensor], lengths: Sequence[int], causal: bool = False, window: int = -1) -> None:
    arguments = (*tensors, lengths, tensors[0].shape[-1] ** -0.5, causal, window)
    found = ours(*arguments)
    assert all(t.dtype == tensors[0].dtype for t in found)
    assert found[0].is_contiguous()
    assert far(found, exact(*arguments)) < TOLERANCE[tensors[0].dtype]


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("d", [16, 32, 64, 128])
def test_result_and_gradients(d: int, dtype: torch.dtype):
    check(numbers(LENGTHS, d, dtype, heads=2 if CUDA or d == 32 else 1), LENGTHS)


@pytest.mark.thin(2)
@pytest.mark.parametrize("window", [-1, 0, 3, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_masks(causal: bool, window: int):
    check(numbers([5, 0, 70], 16), [5, 0, 70], causal, window)


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("causal", "window"), [(False, -1), (True, 20)])
def test_a_bias_by_distance(causal: bool, window: int, dtype: torch.dtype):
    lengths = [5, 0, 1, 40]
    q, k, v, grad = numbers(lengths, 16, dtype)
    bias = torch.randn(2, 2 * 48 - 1, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    leaves = [t.requires_grad_() for t in (q, k, v, bias)]
    out = attention(q, k, v, boundaries(lengths), 0.25, causal, window, bias)
    found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    assert found[4].dtype == dtype
    expected = exact(q, k, v, grad, lengths, 0.25, causal, window, bias)
    assert expected[4].abs().max() > 0.5
    assert far(found, expected) < TOLERANCE[dtype]
    frozen = attention(q, k, v, boundaries(lengths), 0.25, causal, window, bias.detach())
    for one, two in zip(torch.autograd.grad(frozen, leaves[:3], grad), found[1:4], strict=True):
        assert torch.equal(one, two)


@pytest.mark.full
def test_every_length():
    lengths = list(range(1, 129)) if CUDA else [*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 128]
    check(numbers(lengths, 16, heads=1), lengths)


def test_rows_that_fit_the_smallest_block():
    lengths = [16, 0, 1, 9, 16]
    check(numbers(lengths, 32), lengths)


def test_large_scores_do_not_overflow():
    q, k, v, grad = numbers(LENGTHS, 16)
    arguments = (q * 30, k * 30, v, grad, LENGTHS, 1.0, True, 8)
    found = ours(*arguments)
    assert all(t.isfinite().all() for t in found)
    assert far(found[:1], exact(*arguments)[:1]) < 1e-3


@pytest.mark.full
def test_views_of_one_product():
    whole = torch.cat([t.flatten(1) for t in numbers(LENGTHS, 32)], dim=1)  # [tokens, 4 * heads * d]
    views = [part.unflatten(1, (2, 32)) for part in whole.chunk(4, dim=1)]
    assert not any(t.is_contiguous() for t in views)
    check(views, LENGTHS)
    turned = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in views]  # [heads, tokens, d] in memory
    check(turned, LENGTHS)


@pytest.mark.full
def test_a_gradient_that_is_one_expanded_number():
    q, k, v, _ = numbers(LENGTHS, 16)
    check([q, k, v, torch.ones((), device=DEVICE).expand(q.shape)], LENGTHS)


def test_no_rows_at_all():
    q, k, v, grad = numbers([0], 16)
    for found in ours(q, k, v, grad, [0, 0], 1.0, False, -1):
        assert found.shape == (0, 2, 16)


def test_a_wrong_boundary_is_noticed():
    q, k, v, grad = numbers([8, 8], 16)
    assert far(ours(q, k, v, grad, [7, 9], 0.25, False, -1), exact(q, k, v, grad, [8, 8], 0.25, False, -1)) > 0.05


@pytest.mark.full
def test_two_runs_are_equal_bit_by_bit():
    arguments = (*numbers(LENGTHS, 32), LENGTHS, 0.2, True, 20)
    for one, two in zip(ours(*arguments), ours(*arguments), strict=True):
        assert torch.equal(one, two)


def test_every_element_is_written():
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        assert torch.empty(3, device=DEVICE).isnan().all()
        check(numbers(LENGTHS, 16), LENGTHS)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.thin(1)
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("which", range(4))
def test_a_diverged_row_does_not_reach_its_neighbours(which: int):
    tensors = numbers([20, 40, 20], 16)
    tensors[which][20:60] = float("nan")
    expected = ours(*numbers([20, 40, 20], 16), [20, 40, 20], 0.25, False, -1)
    found = ours(*tensors, [20, 40, 20], 0.25, False, -1)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a[:20], b[:20])
        assert torch.equal(a[60:], b[60:])
    assert any(a[20:60].isnan().any() for a in found)


@pytest.mark.full
def test_the_operator_is_registered_as_torch_wants_it():
    q, k, v, _ = numbers([3, 17], 16)
    arguments = (*(t.requires_grad_() for t in (q, k, v)), boundaries([3, 17]), 0.25, True, 5)
    torch.library.opcheck(torch.ops.inlay.short_attention.default, arguments)
    bias = torch.randn(2, 35, device=DEVICE, requires_grad=True)
    torch.library.opcheck(torch.ops.inlay.short_attention.default, (*arguments, bias))


@pytest.mark.full
def test_compiled():
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="inductor" if CUDA else "aot_eager")
    for lengths in ([3, 17, 40], [8, 0, 1, 35]):
        q, k, v, grad = numbers(lengths, 16)
        q, k, v = (t.requires_grad_() for t in (q, k, v))
        out = compiled(q, k, v, boundaries(lengths), 0.25, True, 5)
        found = [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]
        assert far(found, exact(q, k, v, grad, lengths, 0.25, True, 5)) < 2e-6


def test_what_it_takes():
    def offer(d: int, dtype: torch.dtype = torch.float16, longest: int = short_attention.LONGEST) -> bool:
        return takes(torch.empty(4, 2, d, dtype=dtype, device=DEVICE), longest)

    assert offer(64)
    assert not offer(64, longest=short_attention.LONGEST + 1)
    assert not offer(48)
    assert not offer(64, torch.float64)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_in_a_cuda_graph():
    many = [5, 60, 31, 0]
    q, k, v, grad = numbers(many, 64, torch.bfloat16)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    cu = boundaries(many)

    def run() -> list[Tensor]:
        out = attention(q, k, v, cu, 0.125)
        return [out, *torch.autograd.grad(out, (q, k, v), grad)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for lengths in ([1, 2, 93, 0], [24, 24, 24, 24], many):
        cu.copy_(boundaries(lengths))
        graph.replay()
        assert far(found, exact(q, k, v, grad, lengths, 0.125, False, -1)) < 2e-2
