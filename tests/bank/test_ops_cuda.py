"""The CUDA back ends against the reference, in bf16, with memory that held NaN before."""

from __future__ import annotations

import itertools

import pytest
import torch

from inlay.bank import ops
from inlay.bank.route import SegmentRoute

pytestmark = pytest.mark.gpu

ROUTES = [
    ([1, 1, 2, 3, 3], [5, 2, 1, 17, 2], {1: 2, 2: 1, 3: 3}),
    ([0, 2, 0, 3], [4, 9, 3, 64], {2: 3, 3: 1}),
    ([1], [1], {1: 1}),
    (list(range(1, 33)), [31] * 32, {i: i for i in range(1, 33)}),
]


def routed(slots: list[int], lengths: list[int], entries: dict[int, int]) -> SegmentRoute:
    return SegmentRoute.of([0, *itertools.accumulate(lengths)], [entries.get(slot, 0) for slot in slots])


def _poison() -> None:
    """Leave NaN in the allocator's free blocks."""
    junk = [torch.full((n,), float("nan"), device="cuda") for n in (10, 1000, 100_000, 1_000_000)]
    del junk


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-9)).item()


@pytest.mark.parametrize(("slots", "lengths", "entries"), ROUTES)
@pytest.mark.parametrize(("d_in", "d_out"), [(64, 8), (768, 64), (64, 768), (1536, 1)])
def test_grouped_linear_in_bf16(slots, lengths, entries, d_in, d_out):
    route = routed(slots, lengths, entries)
    random = torch.Generator().manual_seed(0)
    x64 = torch.randn(route.tokens, d_in, generator=random).bfloat16().cuda()
    w64 = (torch.randn(40, d_in, d_out, generator=random) / d_in**0.5).bfloat16().cuda()
    b64 = torch.randn(40, d_out, generator=random).bfloat16().cuda()
    grad = torch.randn(route.tokens, d_out, generator=random).bfloat16().cuda()
    found = []
    for run, dtype in ((ops.linear_reference, torch.float64), (ops.linear_grouped, torch.bfloat16)):
        x = x64.detach().to(dtype).requires_grad_()
        # masters stay fp32: gradients must come back in it
        weight, bias = (
            t.detach().to(dtype if dtype == torch.float64 else torch.float32).requires_grad_() for t in (w64, b64)
        )
        _poison()
        grouped = run is ops.linear_grouped
        out = run(x, weight, bias, ops.GroupedSegments(route.segments, len(x), x.device) if grouped else route.segments)
        out.backward(grad.to(dtype))
        found.append((out, x.grad, weight.grad, bias.grad))
    assert found[1][2].dtype == torch.float32
    for ours, exact in zip(found[1], found[0], strict=True):
        assert torch.isfinite(ours).all()
        assert _relative(ours, exact) < 1e-2
    absent = [e for e in range(40) if e not in entries.values()]
    assert found[1][2][absent].abs().max() == 0


def test_a_wrong_route_is_noticed():
    route = routed([1, 2], [16, 16], {1: 1, 2: 2})
    wrong = routed([1, 2], [16, 16], {1: 2, 2: 1})
    x, weight = torch.randn(32, 64, device="cuda").bfloat16(), torch.randn(3, 64, 64, device="cuda").bfloat16()
    exact = ops.linear_reference(x.double(), weight.double(), None, route.segments)
    assert (
        _relative(ops.linear_grouped(x, weight, None, ops.GroupedSegments(wrong.segments, len(x), x.device)), exact)
        > 0.5
    )


def test_a_diverged_entry_does_not_reach_its_neighbours():
    segments = [(0, 4, 1), (6, 9, 2)]
    weigh = torch.ones(10, 64, device="cuda").bfloat16()
    weigh[6:] = float("inf")
    x = torch.randn(10, 64, device="cuda").bfloat16()
    weight, bias = torch.randn(4, 64, 64, device="cuda"), torch.randn(4, 64, device="cuda")
    weight.requires_grad_()
    bias.requires_grad_()
    ops.linear_grouped(x, weight, bias, ops.GroupedSegments(segments, len(x), x.device)).backward(weigh)
    for grad in (weight.grad, bias.grad):
        assert grad[[0, 1, 3]].isfinite().all()
        assert not grad[2].isfinite().all()
        assert not grad[[0, 3]].any()
