"""Every back end of the two routed primitives against the reference, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import tiers
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from inlay.bank import ops
from inlay.bank.ops import Segment
from inlay.bank.route import SegmentRoute, UniformRoute

examples = tiers.examples(40, derandomize=True)


def tiles(segments: Sequence[Segment], tokens: int) -> ops.GroupedSegments:
    return ops.GroupedSegments(segments, tokens, torch.device("cpu"))


LINEAR: dict[str, Callable[..., Tensor]] = {
    "segments": ops.SegmentLinear.apply,
    "grouped": lambda x, weight, bias, segments: ops.linear_grouped(x, weight, bias, tiles(segments, len(x))),
    "route": lambda x, weight, bias, segments: SegmentRoute(segments, len(x)).linear(x, weight, bias),
}
VECTOR: dict[str, Callable[..., Tensor]] = {
    "segments": ops.SegmentVector.apply,
    "grouped": lambda p, segments, n, dtype: ops.vector_grouped(p, tiles(segments, n), dtype),
    "route": lambda p, segments, n, dtype: SegmentRoute(segments, n).vector(p, torch.empty(n, 3, dtype=dtype)),
}
# the grouped product takes neither float64 nor widths that are not multiples of 16 bytes
LINEAR_CASES = [("segments", torch.float64), ("segments", torch.float32), ("grouped", torch.float32)]
LINEAR_CASES += [("route", torch.float64), ("route", torch.float32)]
VECTOR_CASES = [(name, dtype) for name in VECTOR for dtype in (torch.float64, torch.float32)]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4}
SEGMENTS: list[Segment] = [(0, 3, 3), (3, 4, 1), (6, 8, 2), (8, 10, 3)]
"""Entry 3 twice, entry 1 with one token, tokens 4, 5 and 10 outside."""


@dataclass(frozen=True)
class Case:
    slots: list[int]
    lengths: list[int]
    entry_of: dict[int, int]
    entries: int
    """Size of the stack; more than the batch uses."""
    sizes: tuple[int, int]
    seed: int

    @property
    def by_token(self) -> list[int]:
        """Token by token, without the code under test."""
        rows = zip(self.slots, self.lengths, strict=True)
        return [self.entry_of.get(slot, 0) for slot, length in rows for _ in range(length)]

    @property
    def route(self) -> SegmentRoute:
        ends = [0, *itertools.accumulate(self.lengths)]
        return SegmentRoute.of(ends, [self.entry_of.get(slot, 0) for slot in self.slots])

    @property
    def absent(self) -> list[int]:
        """Entries without a token, entry 0 aside."""
        return sorted(set(range(1, self.entries)) - set(self.by_token))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows of six slots in any order and of any length, the group has some of the slots."""
    rows = draw(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 1, 2, 5])), min_size=1, max_size=8))
    members = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True))
    entries = len(members) + 1 + draw(st.integers(0, 2))
    places = draw(st.permutations(range(1, entries)))
    slots, lengths = [slot for slot, _ in rows], [length for _, length in rows]
    sizes = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    entry_of = dict(zip(members, places, strict=False))
    case = Case(slots, lengths, entry_of, entries, sizes, draw(st.integers(0, 1000)))
    assume(any(case.by_token))
    return case


def draw_normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def poisoned(stack: Tensor, absent: Sequence[int] = ()) -> Tensor:
    """Garbage in entry 0, and what no arithmetic survives in entries that are not in the batch."""
    stack[0] = 1e3
    stack[list(absent)] = float("nan")
    return stack


def run(compute: Callable[..., Tensor], inputs: Sequence[Tensor | None], weigh: Tensor | None = None) -> list[Tensor]:
    """The result, and the gradient of each input under fixed output weights."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in inputs]
    out = compute(*leaves)
    if weigh is None:
        weigh = draw_normal(9, *out.shape, dtype=out.dtype)
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [out, *torch.autograd.grad(out, wanted, weigh.expand_as(out))]


def same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def linear_inputs(case: Case, dtype: torch.dtype, bias: bool = True, unit: int = 1) -> list[Tensor | None]:
    d_in, d_out = (n * unit for n in case.sizes)
    n, e = case.route.tokens, case.entries
    x = draw_normal(case.seed, n, d_in, dtype=dtype)
    weight = poisoned(draw_normal(case.seed + 1, e, d_in, d_out, dtype=dtype), case.absent)
    return [x, weight, poisoned(draw_normal(case.seed + 2, e, d_out, dtype=dtype), case.absent) if bias else None]


def fixed_inputs(dtype: torch.dtype = torch.float32, bias: bool = True) -> list[Tensor | None]:
    x, weight = draw_normal(1, 11, 8, dtype=dtype), poisoned(draw_normal(2, 5, 8, 16, dtype=dtype))
    return [x, weight, poisoned(draw_normal(3, 5, 16, dtype=dtype)) if bias else None]


@examples
@given(case=cases())
def test_the_route_spans_the_tokens_from_the_groups_first_to_its_last(case: Case):
    inside = [i for i, entry in enumerate(case.by_token) if entry]
    route = case.route
    assert route.span == (inside[0], inside[-1] + 1)
    found = ops.entries(route.segments, route.tokens, torch.device("cpu"))
    assert found.tolist() == case.by_token[inside[0] : inside[-1] + 1]
    assert all(start < end for start, end, _ in route.segments)


@pytest.mark.thin(5)
@pytest.mark.parametrize(("name", "dtype"), LINEAR_CASES)
@pytest.mark.parametrize("bias", [True, False])
@examples
@given(case=cases())
def test_linear_equals_the_reference(name: str, dtype: torch.dtype, bias: bool, case: Case):
    segments = case.route.segments
    inputs = linear_inputs(case, dtype, bias, unit=8 if name == "grouped" else 1)
    found = run(lambda *leaves: LINEAR[name](*leaves, segments), inputs)
    expected = run(lambda *leaves: ops.linear_reference(*leaves, segments), inputs)
    same(found, expected, TOLERANCE[dtype])
    out, grad_x, *grads = found
    outside = ops.entries(segments, case.route.tokens, out.device) == 0
    assert not out[outside].any()
    assert not grad_x[outside].any()
    for grad in grads:
        assert not grad[[0, *case.absent]].any()


@pytest.mark.thin(3)
@pytest.mark.parametrize(("name", "dtype"), VECTOR_CASES)
@examples
@given(case=cases())
def test_vector_equals_the_reference(name: str, dtype: torch.dtype, case: Case):
    segments, n = case.route.segments, case.route.tokens
    p = poisoned(draw_normal(case.seed, case.entries, case.sizes[0], dtype=dtype), case.absent)
    found = run(lambda leaf: VECTOR[name](leaf, segments, n, dtype), [p])
    expected = run(lambda leaf: ops.vector_reference(leaf, segments, n, dtype), [p])
    same(found, expected, TOLERANCE[dtype])
    outside = ops.entries(segments, n, p.device) == 0
    assert not found[0][outside].any()
    assert not found[1][[0, *case.absent]].any()


def test_the_reference_is_each_tokens_own_product():
    x, weight, bias = fixed_inputs(torch.float64)
    out = ops.linear_reference(x, weight, bias, SEGMENTS)
    spread = ops.vector_reference(bias, SEGMENTS, 11, torch.float64)
    for token, entry in enumerate([3, 3, 3, 1, 0, 0, 2, 2, 3, 3, 0]):
        mine = x[token] @ weight[entry] + bias[entry] if entry else torch.zeros(16, dtype=torch.float64)
        torch.testing.assert_close(out[token], mine)
        torch.testing.assert_close(spread[token], bias[entry] if entry else torch.zeros_like(bias[0]))


def test_gradients_equal_finite_differences():
    x, weight, bias = (
        t.requires_grad_() for t in (draw_normal(1, 11, 3), draw_normal(2, 4, 3, 2), draw_normal(3, 4, 2))
    )
    assert torch.autograd.gradcheck(lambda *leaves: ops.SegmentLinear.apply(*leaves, SEGMENTS), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda p: ops.SegmentVector.apply(p, SEGMENTS, 11, torch.float64), (bias,))


@pytest.mark.parametrize("name", LINEAR)
def test_a_segment_of_entry_zero_is_a_hole(name: str):
    filled = sorted([*SEGMENTS, (4, 6, 0), (10, 11, 0)])
    inputs = fixed_inputs()
    found = run(lambda *leaves: LINEAR[name](*leaves, filled), inputs)
    same(found, run(lambda *leaves: LINEAR[name](*leaves, SEGMENTS), inputs), 0)
    p = inputs[2]
    found = run(lambda leaf: VECTOR[name](leaf, filled, 11, p.dtype), [p])
    same(found, run(lambda leaf: VECTOR[name](leaf, SEGMENTS, 11, p.dtype), [p]), 0)
    assert not found[0][[4, 5, 10]].any()
    assert not found[1][0].any()


@pytest.mark.parametrize("name", LINEAR)
def test_linear_notices_a_wrong_route(name: str):
    swapped = [(start, end, {1: 2, 2: 1}.get(entry, entry)) for start, end, entry in SEGMENTS]
    inputs = fixed_inputs()
    found = run(lambda *leaves: LINEAR[name](*leaves, swapped), inputs)
    expected = run(lambda *leaves: ops.linear_reference(*leaves, SEGMENTS), inputs)
    for one, other in zip(found, expected, strict=True):  # the result and every gradient, each by itself
        with pytest.raises(AssertionError, match="not close"):
            same([one], [other], TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", VECTOR)
def test_vector_notices_a_wrong_route(name: str):
    swapped = [(start, end, {1: 2, 2: 1}.get(entry, entry)) for start, end, entry in SEGMENTS]
    p = draw_normal(1, 5, 8)
    found = run(lambda leaf: VECTOR[name](leaf, swapped, 11, p.dtype), [p])
    expected = run(lambda leaf: ops.vector_reference(leaf, SEGMENTS, 11, p.dtype), [p])
    for one, other in zip(found, expected, strict=True):
        with pytest.raises(AssertionError, match="not close"):
            same([one], [other], TOLERANCE[p.dtype])


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_with_wider_parameters_answers_in_the_dtype_of_x(name: str, bias: bool):
    x, weight, shift = fixed_inputs(torch.float64, bias)
    inputs = [x.float(), weight, shift]
    out, grad_x, *grads = run(lambda *leaves: LINEAR[name](*leaves, SEGMENTS), inputs)
    assert (out.dtype, grad_x.dtype) == (torch.float32, torch.float32)
    assert {grad.dtype for grad in grads} == {torch.float64}
    same([out, grad_x, *grads], run(lambda *leaves: ops.linear_reference(*leaves, SEGMENTS), inputs), 1e-4)


@pytest.mark.parametrize("name", VECTOR)
def test_vector_with_wider_parameters_sums_in_their_dtype(name: str):
    p = poisoned(draw_normal(1, 5, 8))
    weigh = torch.full((11, 8), 1.0)
    weigh[0], weigh[2] = 2.0**30, -(2.0**30)  # summed in float32, the token between them would be lost
    out, grad = run(lambda leaf: VECTOR[name](leaf, SEGMENTS, 11, torch.float32), [p], weigh)
    assert (out.dtype, grad.dtype) == (torch.float32, torch.float64)
    assert grad[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]
    assert torch.equal(out, ops.vector_reference(p, SEGMENTS, 11, torch.float32))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_takes_transposed_inputs_and_expanded_gradients(name: str):
    x, weight, bias = fixed_inputs()
    inputs = [x.t().contiguous(), weight, bias]
    one = torch.ones(())
    found = run(lambda x, weight, bias: LINEAR[name](x.t(), weight, bias, SEGMENTS), inputs, one)
    expected = run(lambda x, weight, bias: ops.linear_reference(x.t(), weight, bias, SEGMENTS), inputs, one)
    same(found, expected, 1e-4)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_linear_gives_only_the_gradients_that_are_asked_for(name: str, wanted: int):
    def only(compute: Callable[..., Tensor]) -> list[Tensor]:
        inputs = fixed_inputs()
        leaf = inputs[wanted].requires_grad_()
        compute(*inputs, SEGMENTS).square().sum().backward()
        assert [t.grad is not None for t in inputs] == [i == wanted for i in range(3)]
        return [leaf.grad]

    same(only(LINEAR[name]), only(ops.linear_reference), 1e-3)


@pytest.mark.parametrize("entry", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_uniform_route_gives_every_token_one_entry(entry: int, bias: bool, dtype: torch.dtype):
    inputs = [draw_normal(1, 7, 3, dtype=dtype), draw_normal(2, 4, 3, 5), draw_normal(3, 4, 5) if bias else None]
    whole = [(0, 7, 1)]  # the reference over a stack in which the entry is not number 0

    def expected(x: Tensor, weight: Tensor, shift: Tensor | None) -> Tensor:
        moved = [None if t is None else torch.stack([torch.zeros_like(t[0]), t[entry]]) for t in (weight, shift)]
        return ops.linear_reference(x, *moved, whole)

    same(run(UniformRoute(entry).linear, inputs), run(expected, inputs), TOLERANCE[dtype])


@pytest.mark.parametrize("entry", [0, 2])
def test_a_uniform_routes_vector_broadcasts_over_any_number_of_tokens(entry: int):
    p, like = draw_normal(1, 4, 5), torch.ones(7, 5, dtype=torch.float32)
    out, grad = run(lambda leaf: UniformRoute(entry).vector(leaf, like).expand(7, 5), [p], torch.ones(()))
    assert torch.equal(out, p[entry].float().repeat(7, 1))
    assert grad.dtype == torch.float64
    assert grad[:, 0].tolist() == [7.0 if e == entry else 0.0 for e in range(4)]


def test_a_route_refuses_a_tensor_of_another_length():
    route = SegmentRoute([(0, 3, 1)], 3)
    with pytest.raises(AssertionError, match="3 tokens, the tensor 4"):
        route.linear(torch.zeros(4, 2), torch.zeros(2, 2, 2))
    with pytest.raises(AssertionError, match="3 tokens, the tensor 4"):
        route.vector(torch.zeros(2, 2), torch.zeros(4, 2))


@pytest.mark.parametrize("name", [name for name in LINEAR if name != "route"])
def test_a_diverged_entry_does_not_reach_its_neighbours(name: str):
    segments: list[Segment] = [(0, 4, 1), (6, 9, 2)]
    x, weight, bias = draw_normal(0, 10, 16).float(), draw_normal(1, 4, 16, 8).float(), draw_normal(2, 4, 8).float()
    weigh = torch.ones(10, 8)
    weigh[6:] = float("inf")  # entry 2's loss, and the hole after it
    inputs = [t.requires_grad_() for t in (x, weight, bias)]
    LINEAR[name](*inputs, segments).backward(weigh)
    vector = draw_normal(3, 4, 8).float().requires_grad_()
    VECTOR[name](vector, segments, 10, torch.float32).backward(weigh)
    for grad in (weight.grad, bias.grad, vector.grad):
        assert grad[[0, 1, 3]].isfinite().all()
        assert not grad[2].isfinite().all()
        assert not grad[[0, 3]].any()
    assert x.grad[:6].isfinite().all()


@examples
@given(case=cases())
def test_chopped_segments_give_what_the_reference_gives(case: Case):
    """Whatever the segments are; whether it pays is another matter."""
    route = case.route
    x, weight, bias = linear_inputs(case, torch.float64)
    assert x is not None
    assert weight is not None
    chopped = ops.Chopped(route.segments, route.tokens, x.device)
    for b in (bias, None):
        found = ops.linear_chopped(x, weight, b, chopped)
        torch.testing.assert_close(found, ops.linear_reference(x, weight, b, route.segments), atol=1e-5, rtol=1e-5)
    vector = ops.vector_chopped(weight[:, 0], chopped, x.dtype)
    assert torch.equal(vector, ops.vector_reference(weight[:, 0], route.segments, route.tokens, x.dtype))


def test_a_route_of_many_short_segments_is_chopped_without_gradients(monkeypatch):
    calls = []
    real = ops.linear_chopped
    monkeypatch.setattr(ops, "linear_chopped", lambda *a: calls.append(1) or real(*a))
    segments = [(3 * i, 3 * i + 2 + i % 2, 1 + i % 4) for i in range(10)]
    x, weight = draw_normal(1, 30, 8), draw_normal(2, 5, 8, 16)
    route = SegmentRoute(segments, 30)
    with torch.no_grad():
        found = route.linear(x, weight)
    assert calls == [1]
    torch.testing.assert_close(route.linear(x, weight), found)
    assert calls == [1]
    with torch.no_grad():
        SegmentRoute(segments[:4], 30).linear(x, weight)  # too few
        long = SegmentRoute([(200 * i, 200 * i + 200, 1) for i in range(8)], 1600)
        long.linear(draw_normal(1, 1600, 8), weight)  # too long
    assert calls == [1]
    with torch.no_grad():  # lengths may differ
        SegmentRoute([*segments[:9], (27, 30, 0), (30, 300, 2)], 300).linear(draw_normal(1, 300, 8), weight)
    assert calls == [1, 1]
