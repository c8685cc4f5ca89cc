"""The Triton kernels against a token-by-token oracle in float64, forward and backward.

With CUDA they run as they are; without, in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from interpreted import CUDA, DEVICE
from torch import Tensor

from inlay.kernels import launch, routed_bottleneck, routed_sums
from inlay.kernels.routed_bottleneck import bottleneck, bottleneck_backward, bottleneck_forward
from inlay.kernels.routed_linear import linear, linear_forward, vector
from inlay.kernels.routed_sums import segment_sum, weight_grad

INTERPRETED = not CUDA
HALF = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter multiplies bf16 as if it were integers
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@dataclass(frozen=True)
class Batch:
    """Places with `lengths` tokens, `lead` and `tail` tokens that nobody owns, padded places and tiles."""

    lengths: tuple[int, ...]
    entries: tuple[int, ...]
    lead: int = 0
    tail: int = 0
    padded: int = 0
    block: int = 16
    capacity: int = 6

    @property
    def tokens(self) -> int:
        return self.lead + sum(self.lengths) + self.tail

    @property
    def by_token(self) -> Tensor:
        """[tokens] the entry of each."""
        owned = [entry for entry, n in zip(self.entries, self.lengths, strict=True) for _ in range(n)]
        return torch.tensor([0] * self.lead + owned + [0] * self.tail)

    @property
    def place(self) -> Tensor:
        """[tokens] the place of each, -1 for none."""
        owned = [place for place, n in enumerate(self.lengths) for _ in range(n)]
        return _table([-1] * self.lead + owned + [-1] * self.tail)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """entry, tiles, bounds. Padded places name an entry that is in use: they must not write to it."""
        bounds, tiles = [self.lead], []
        for place, length in enumerate(self.lengths):
            start = bounds[-1]
            tiles += [[start + at, min(self.block, length - at), place] for at in range(0, length, self.block)]
            bounds.append(start + length)
        bounds += bounds[-1:] * self.padded
        tiles += [[0, 0, 0]] * self.padded
        entry = [*self.entries, *[max(self.entries)] * self.padded]
        return _table(entry), _table(tiles).view(-1, 3), _table(bounds)


def _table(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


BATCHES = {
    "several": Batch((17, 1, 40, 16), (3, 0, 1, 5), tail=9, padded=2),
    "one": Batch((33,), (1,)),
    "lead": Batch((5, 20), (2, 4), lead=21, block=32),
    "strangers": Batch((8, 30, 3), (0, 2, 0), tail=40, padded=1),
}
everywhere = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)


def _random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def _stacks(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Parameters whose entry 0 is NaN, in numbers that are exact in half precision."""
    stacks = []
    for seed, shape in enumerate(shapes):
        stack = _random(*shape, seed=seed, scale=shape[-2] ** -0.5 if len(shape) == 3 else 1.0).to(HALF).float()
        stack[0] = float("nan")
        stacks.append(stack.to(DEVICE, dtype))
    return stacks


def _input(tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    """Rows that are not side by side."""
    return _random(tokens, width + 16, seed=9).to(HALF).to(DEVICE, dtype)[:, 8 : width + 8]


def _gradients(run: Callable[..., Tensor], inputs: list[Tensor | None], grad: Tensor) -> list[Tensor]:
    """The output, and the gradient of each input."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
    out = run(*leaves)
    out.backward(grad.to(out))
    return [out.detach(), *(t.grad for t in leaves if t is not None)]


def _exact(run: Callable[..., Tensor], inputs: list[Tensor | None], grad: Tensor) -> list[Tensor]:
    """The same in float64; entry 0 is zero there, since the oracle indexes it."""
    wide = [None if t is None else t.detach().cpu().double().nan_to_num(0.0) for t in inputs]
    return _gradients(run, wide, grad.cpu())


def _compare(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(exact)
    for index, (ours, wanted) in enumerate(zip(found, exact, strict=True)):
        assert ours.shape == wanted.shape
        error = (ours.cpu().double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-6)
        assert error < tolerance, f"{('output', *('input',) * 9)[index]} {index}: {error:.2e}"


def _linear_oracle(own: Tensor) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.einsum("ni,nio->no", x, weight[own])
        return torch.where((own > 0)[:, None], out if bias is None else out + bias[own], 0.0)

    return run


def _bottleneck_oracle(own: Tensor, act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    linear = _linear_oracle(own)
    return lambda x, down, down_bias, up, up_bias: linear(act(linear(x, down, down_bias)), up, up_bias)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda h: 0.5 * h * (1 + torch.erf(h / 2**0.5)),
    "relu": lambda h: h.clamp_min(0),
    "tanh": torch.tanh,
    "swish": lambda h: h * torch.sigmoid(h),
    "leaky_relu": lambda h: torch.where(h > 0, h, 0.01 * h),
    "identity": lambda h: h,
    "mish": F.mish,
}


class TestKernels:
    @pytest.fixture(autouse=True)
    def poisoned(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
        """Outputs hold NaN until a kernel has written them."""
        filled: list[int] = []

        def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
            filled.append(1)
            return torch.full(shape, float("nan"), dtype=dtype, device=device)

        monkeypatch.setattr(launch, "empty", empty)
        return filled

    @pytest.mark.thin(4)
    @everywhere
    @pytest.mark.parametrize(("d_in", "d_out"), [(40, 24), (33, 1), (8, 70), (50, 8)])
    def test_linear(self, batch: Batch, d_in: int, d_out: int, poisoned: list[int]) -> None:
        entry, tiles, bounds = batch.tables
        inputs = [_input(batch.tokens, d_in, torch.float32), *_stacks((6, d_in, d_out), (6, d_out))]
        grad = _random(batch.tokens, d_out, seed=5)
        found = _gradients(lambda x, w, b: linear(x, w, b, entry, tiles, bounds, batch.block), inputs, grad)
        assert poisoned
        _compare(found, _exact(_linear_oracle(batch.by_token), inputs, grad), 1e-5)

    @pytest.mark.parametrize("parameters", [torch.float32, HALF])
    def test_linear_in_half_precision(self, parameters: torch.dtype) -> None:
        """Weights may be wider than x; gradients come back in the dtype of each."""
        batch = BATCHES["several"]
        entry, tiles, bounds = batch.tables
        inputs = [_input(batch.tokens, 48, HALF), *_stacks((6, 48, 20), (6, 20), dtype=parameters)]
        grad = _random(batch.tokens, 20, seed=5).to(HALF)
        found = _gradients(lambda x, w, b: linear(x, w, b, entry, tiles, bounds, 16), inputs, grad)
        assert [t.dtype for t in found] == [HALF, HALF, parameters, parameters]
        exact = _exact(_linear_oracle(batch.by_token), inputs, grad)
        _compare(found, exact, TOLERANCE[HALF])
        if parameters == torch.float32:
            _compare(found[2:], exact[2:], 1e-5)  # sums are fp32: no rounding but at the end

    def test_no_bias_and_a_frozen_weight(self) -> None:
        batch = BATCHES["several"]
        entry, tiles, bounds = batch.tables
        x, weight, bias = _input(batch.tokens, 24, torch.float32), *_stacks((6, 24, 17), (6, 17))
        grad, oracle = _random(batch.tokens, 17, seed=5), _linear_oracle(batch.by_token)
        bare = _gradients(lambda x, w: linear(x, w, None, entry, tiles, bounds, 16), [x, weight], grad)
        _compare(bare, _exact(oracle, [x, weight], grad), 1e-5)
        frozen = _gradients(lambda x, b: linear(x, weight, b, entry, tiles, bounds, 16), [x, bias], grad)
        exact = _exact(oracle, [x, weight, bias], grad)
        _compare(frozen, [exact[0], exact[1], exact[3]], 1e-5)

    def test_a_wrong_table_is_noticed(self) -> None:
        """Positive control: the comparison fails if one place has another's entry."""
        batch = BATCHES["several"]
        entry, tiles, bounds = batch.tables
        entry[2] = 4
        inputs = [_input(batch.tokens, 24, torch.float32), *_stacks((6, 24, 8), (6, 8))]
        grad = _random(batch.tokens, 8, seed=5)
        found = _gradients(lambda x, w, b: linear(x, w, b, entry, tiles, bounds, 16), inputs, grad)
        exact = _exact(_linear_oracle(batch.by_token), inputs, grad)
        for index in (0, 1, 2, 3):
            with pytest.raises(AssertionError):
                _compare(found[index : index + 1], exact[index : index + 1], 1e-5)

    def test_memory_that_is_not_written_is_noticed(self) -> None:
        """Positive control: without its tile, a token's output stays NaN."""
        batch = BATCHES["one"]
        entry, tiles, bounds = batch.tables
        x, weight = _input(batch.tokens, 24, torch.float32), *_stacks((6, 24, 8))
        assert linear(x, weight, None, entry, tiles[:-1].contiguous(), bounds, 16).isnan().any()

    @pytest.mark.thin(3)
    @everywhere
    @pytest.mark.parametrize("m", [8, 32])
    def test_bottleneck(self, batch: Batch, m: int) -> None:
        self._check_bottleneck(batch, 40, m, "gelu", torch.float32)

    @pytest.mark.thin(2)
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_activations(self, activation: str) -> None:
        self._check_bottleneck(BATCHES["several"], 32, 16, activation, torch.float32)
        self._check_bottleneck(BATCHES["several"], 48, 16, activation, HALF)

    def test_a_bottleneck_too_wide_for_the_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(routed_bottleneck, "WIDEST", 16)
        self._check_bottleneck(BATCHES["lead"], 32, 24, "gelu", torch.float32)

    def _check_bottleneck(self, batch: Batch, d: int, m: int, activation: str, dtype: torch.dtype) -> None:
        entry, tiles, bounds = batch.tables
        inputs = [_input(batch.tokens, d, dtype), *_stacks((6, d, m), (6, m), (6, m, d), (6, d))]
        grad = _random(batch.tokens, d, seed=5).to(dtype)
        found = _gradients(lambda *p: bottleneck(*p, None, activation, entry, tiles, bounds, batch.block), inputs, grad)
        assert [t.dtype for t in found[:3]] == [dtype, dtype, torch.float32]
        exact = _exact(_bottleneck_oracle(batch.by_token, ACTIVATIONS[activation]), inputs, grad)
        _compare(found, exact, 3e-5 if dtype == torch.float32 else 2 * TOLERANCE[dtype])

    @pytest.mark.thin(3)
    @everywhere
    @pytest.mark.parametrize("widest", [routed_bottleneck.WIDEST, 4])
    def test_low_rank(self, batch: Batch, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """No biases, a scale of each entry, and another width out than in; with and without the fused kernel."""
        monkeypatch.setattr(routed_bottleneck, "WIDEST", widest)
        entry, tiles, bounds = batch.tables
        x, (down, up) = _input(batch.tokens, 40, torch.float32), _stacks((6, 40, 8), (6, 8, 72))
        scale, grad = 0.5 + torch.arange(6.0)[:, None], _random(batch.tokens, 72, seed=5)
        on = scale.to(DEVICE)

        def run(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
            return bottleneck(x, down, None, up, None, on, "identity", entry, tiles, bounds, batch.block)

        linear, own = _linear_oracle(batch.by_token), scale.double()[batch.by_token]
        exact = _exact(lambda x, down, up: linear(linear(x, down) * own, up), [x, down, up], grad)
        _compare(_gradients(run, [x, down, up], grad), exact, 3e-5)

    @everywhere
    @pytest.mark.parametrize("width", [1, 70])
    def test_segment_sum(self, batch: Batch, width: int) -> None:
        entry, _, bounds = batch.tables
        g, own = _input(batch.tokens, width, HALF), batch.by_token
        found = segment_sum(g, entry, bounds, 6)
        exact = torch.zeros(6, width, dtype=torch.float64).index_add(0, own, g.cpu().double())
        exact[0] = 0
        assert found.dtype == torch.float32
        _compare([found], [exact], 1e-6)

    @everywhere
    @pytest.mark.parametrize("width", [1, 20])
    def test_vector(self, batch: Batch, width: int) -> None:
        entry, _, bounds = batch.tables
        (p,), own = _stacks((6, width)), batch.by_token
        grad = _random(batch.tokens, width, seed=5).to(HALF)
        found = _gradients(lambda p: vector(p, entry, bounds, batch.place, HALF), [p], grad)
        assert [t.dtype for t in found] == [HALF, torch.float32]
        exact = _exact(lambda p: torch.where((own > 0)[:, None], p[own], 0.0), [p], grad)
        _compare(found, exact, 1e-6)

    @pytest.mark.thin(2)
    @pytest.mark.parametrize("lengths", [(3, 125), (17, 1, 100), (50, 40, 51), (16, 17, 15), (33, 16, 33, 2)])
    @pytest.mark.parametrize("lead", [0, 7])
    def test_sums_in_parts(self, lengths: tuple[int, ...], lead: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long places are cut, short ones are not, and no part is written over another."""
        monkeypatch.setattr(routed_sums, "_chunk", lambda *_: 16)
        batch = Batch(lengths, (2, 1, 4, 5)[: len(lengths)], lead=lead, tail=3, padded=1)
        entry, _, bounds = batch.tables
        x, g = _input(batch.tokens, 20, torch.float32), _random(batch.tokens, 70, seed=5).to(DEVICE)
        found = weight_grad(x, g, entry, bounds, 6, True, torch.float32)
        inside = F.one_hot(batch.by_token, 6).double()
        inside[:, 0] = 0
        wide = (x.cpu().double(), g.cpu().double())
        _compare(list(found), [torch.einsum("ne,ni,no->eio", inside, *wide), inside.T @ wide[1]], 1e-5)
        self.test_segment_sum(batch, 70)
        self.test_vector(batch, 5)

    @pytest.mark.parametrize(
        ("tokens", "places", "blocks"), [(1000, 1, 12), (65536, 64, 12), (8192, 16, 12), (9, 0, 1)]
    )
    def test_how_sums_are_cut(self, tokens: int, places: int, blocks: int) -> None:
        parts = -(-tokens // routed_sums._chunk(tokens, places, blocks))
        assert parts * blocks >= 50 or places > 16 or tokens < 128
        assert parts * blocks * places <= 5000

    @everywhere
    def test_the_middle_is_written_too(self, batch: Batch) -> None:
        tables = (*batch.tables, batch.block)
        x, (down, down_bias, up, up_bias) = (
            _input(batch.tokens, 24, HALF),
            _stacks((6, 24, 8), (6, 8), (6, 8, 24), (6, 24)),
        )
        out, h = bottleneck_forward(x, down, down_bias, up, up_bias, None, "gelu", *tables)
        dx, dh = bottleneck_backward(x, h, down, up, None, "gelu", *tables)
        assert not any(t.isnan().any() for t in (out, h, dx, dh))
        assert not any(t[batch.by_token == 0].any() for t in (out, h, dx, dh))

    def test_gradients_that_are_expanded(self) -> None:
        """Those of a plain sum: one number for all."""
        batch = BATCHES["one"]
        entry, tiles, bounds = batch.tables
        x, weight = (t.requires_grad_() for t in (_input(33, 20, torch.float32), *_stacks((6, 20, 8))))
        linear(x, weight, None, entry, tiles, bounds, 16).sum().backward()
        _compare([weight.grad[1]], [x.detach().cpu().double().sum(0)[:, None].expand(20, 8)], 1e-5)

    @pytest.mark.full
    def test_twice_the_same_bits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(routed_sums, "_chunk", lambda *_: 16)
        batch = Batch((40, 60), (2, 1), tail=3)
        entry, tiles, bounds = batch.tables
        inputs = [_input(batch.tokens, 32, HALF), *_stacks((6, 32, 8), (6, 8), (6, 8, 32), (6, 32))]
        grad = _random(batch.tokens, 32, seed=5).to(HALF)

        def run(*p: Tensor) -> Tensor:
            out = bottleneck(*p, None, "gelu", entry, tiles, bounds, 16)
            return out + vector(p[4], entry, bounds, batch.place, HALF)

        first, second = _gradients(run, inputs, grad), _gradients(run, inputs, grad)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_nothing_to_do(self) -> None:
        entry, tiles, bounds = _table([0]), _table([]).view(0, 3), _table([0, 0])
        (weight,) = _stacks((6, 20, 8))
        assert linear(torch.zeros(0, 20, device=DEVICE), weight, None, entry, tiles, bounds, 16).shape == (0, 8)
        assert not linear(torch.ones(5, 20, device=DEVICE), weight, None, entry, tiles, bounds, 16).any()


class TestCompiler:
    @pytest.mark.full
    def test_registration(self) -> None:
        """Schema, shapes and gradients agree with what the operators tell the compiler."""
        batch = BATCHES["several"]
        entry, tiles, bounds = batch.tables
        x, weight, bias, up, up_bias = (
            t.nan_to_num(0.0).requires_grad_()
            for t in (_input(batch.tokens, 20, torch.float32), *_stacks((6, 20, 8), (6, 8), (6, 8, 20), (6, 20)))
        )
        check, scale = torch.library.opcheck, torch.rand(6, 1, device=DEVICE)
        check(linear_forward, (x, weight, bias, entry, tiles, bounds, 16))
        check(linear_forward, (x, weight, None, entry, tiles, bounds, 16))
        check(bottleneck_forward, (x, weight, bias, up, up_bias, None, "gelu", entry, tiles, bounds, 16))
        check(bottleneck_forward, (x, weight, None, up, None, scale, "identity", entry, tiles, bounds, 16))
        x, h, weight, up = (t.detach() for t in (x, x[:, :8].contiguous(), weight, up))
        check(segment_sum, (x, entry, bounds, 6))
        check(weight_grad, (x, h, entry, bounds, 6, True, torch.float32))
        check(weight_grad, (x, h, entry, bounds, 6, False, torch.float32))
        check(bottleneck_backward, (x, h, weight, up, scale, "gelu", entry, tiles, bounds, 16))

    @pytest.mark.full
    def test_one_graph_for_all_sizes(self) -> None:
        from torch._dynamo.testing import CompileCounterWithBackend

        def run(x: Tensor, down: Tensor, down_bias: Tensor, up: Tensor, up_bias: Tensor, *tables: Tensor) -> Tensor:
            place, *rest = tables
            entry, _, bounds = rest
            h = bottleneck(x, down, down_bias, up, up_bias, None, "gelu", *rest, 16)
            h = h * vector(up_bias, entry, bounds, place, x.dtype)
            return h + linear(x, up.transpose(1, 2) @ up, up_bias, *rest, 16)

        backend = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=backend)
        for batch, capacity in ((BATCHES["several"], 11), (Batch((7, 30, 20, 9, 8), (3, 1, 0, 2, 5), tail=2), 9)):
            tables = (batch.place, *batch.tables)
            shapes = ((capacity, 20, 8), (capacity, 8), (capacity, 8, 20), (capacity, 20))
            inputs = [_input(batch.tokens, 20, torch.float32), *(t.nan_to_num(0.0) for t in _stacks(*shapes))]
            grad = _random(batch.tokens, 20, seed=5)
            found, plain = (_gradients(lambda *p, f=f, t=tables: f(*p, *t), inputs, grad) for f in (compiled, run))
            assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
        assert backend.frame_count == 1


@pytest.mark.gpu
def test_a_captured_graph_serves_other_batches_of_its_size() -> None:
    """Replayed with other numbers in the tables, a graph does what the operators do."""
    first, second = Batch((40, 24), (1, 3), tail=6), Batch((9, 61), (0, 2))
    size = max(first.tables[1].shape[0], second.tables[1].shape[0])
    tables = [
        [entry, F.pad(tiles, (0, 0, 0, size - len(tiles))), bounds]
        for entry, tiles, bounds in (first.tables, second.tables)
    ]
    x, down, down_bias, up, up_bias = (
        t.requires_grad_() for t in (_input(70, 64, HALF), *_stacks((6, 64, 16), (6, 16), (6, 16, 64), (6, 64)))
    )
    grad, static = _random(70, 64, seed=5).to("cuda", HALF), [t.clone() for t in tables[0]]

    def step(now: list[Tensor]) -> list[Tensor]:
        out = bottleneck(x, down, down_bias, up, up_bias, None, "gelu", *now, 16)
        return [out, *torch.autograd.grad(out, (x, down, down_bias, up, up_bias), grad)]

    expected = [[t.detach().clone() for t in step(table)] for table in tables]  # no graph from before may be alive
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(static)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        captured = step(static)
    for table, wanted in zip(tables, expected, strict=True):
        for old, new in zip(static, table, strict=True):
            old.copy_(new)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))
