"""Dropout by hash: every version against plain integers, and the hash against chance."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

from inlay.bank import noise
from inlay.bank.noise import keep_lanes, keyed_dropout, mix

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SHAPES = [(40, 130), (17, 33), (1, 1), (3, 384), (0, 5), (5, 0)]


def lowbias32(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = h * 0x846CA68B % 2**32
    return h ^ (h >> 16)


def signed(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def lane(key: int, local: int, place: int, column: int) -> int:
    """One element's bits, from plain integers."""
    key, local, place = (n % 2**32 for n in (key, local, place))
    token = lowbias32((lowbias32(key ^ place) + local * 0x9E3779B1) % 2**32)
    h = lowbias32((token + column // 2 * 0x85EBCA6B) % 2**32)
    return signed(h >> 16 if column % 2 else h % 2**16, 16)


def number(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32, device=DEVICE)


def batch(tokens: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, key, local, place; some tokens are not trained."""
    random = torch.Generator().manual_seed(tokens * 1000 + width)
    x = torch.randn(tokens, width, generator=random).to(DEVICE, dtype)
    key = torch.randint(-(2**31), 2**31, (tokens,), generator=random).to(DEVICE, torch.int32)
    local = (torch.arange(tokens) % 31 - 3).to(DEVICE, torch.int32)
    return x, key, local, number(signed(lowbias32(7), 32))


def keys_and_locals(keys: int, each: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Many tokens of slots whose keys differ by one."""
    key = torch.arange(first, first + keys, dtype=torch.int32, device=DEVICE).repeat_interleave(each)
    return key, torch.arange(each, dtype=torch.int32, device=DEVICE).repeat(keys)


def test_mix_has_known_answers():
    known = {0: 0, 1: 0x688990C0, 2: 0xD1132181 - 2**32, -1: 0x6768824A}
    for value in [2**31 - 1, -(2**31), 0x12345678, *known]:
        expected = signed(lowbias32(value % 2**32), 32)
        assert known.get(value, expected) == expected
        assert mix(number(value)).item() == expected


def test_mix_leaves_its_input_alone():
    h = torch.arange(9, dtype=torch.int32)
    mix(h)
    assert h.tolist() == list(range(9))


@pytest.mark.parametrize("width", [1, 2, 7, 32])
def test_lanes_against_plain_integers(width: int):
    _, key, local, place = batch(20, width)
    lanes = keep_lanes(key, local, place, width)
    assert lanes.dtype == torch.int16
    keys, locals_ = key.tolist(), local.tolist()
    assert lanes.tolist() == [
        [lane(k, i, int(place), c) for c in range(width)] for k, i in zip(keys, locals_, strict=True)
    ]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kept_and_dropped_elements(dtype: torch.dtype, p: float):
    x, key, local, place = batch(40, 33, dtype)
    out = keyed_dropout(x, key, local, place, p)
    kept = keep_lanes(key, local, place, 33).int() >= round(p * 65536) - 32768
    trained = (local >= 0).unsqueeze(1)
    scaled = x * (1 / (1 - p)) if p < 1 else torch.zeros_like(x)
    assert out.dtype == dtype
    assert torch.equal(out, torch.where(trained, torch.where(kept, scaled, 0.0), x))
    assert torch.equal(out[local < 0], x[local < 0])


def test_the_gradient_is_the_mask():
    x, key, local, place = batch(40, 33)
    x.requires_grad_()
    out = keyed_dropout(x, key, local, place, 0.3)
    weigh = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, weigh)
    mask = keyed_dropout(torch.ones_like(x), key, local, place, 0.3)
    assert torch.equal(grad, weigh * mask)
    assert 0 < (mask == 0).float().mean() < 1


def test_what_is_dropped_is_zero_even_where_it_was_not_finite():
    x, key, local, place = batch(40, 32)
    mask = keyed_dropout(torch.ones_like(x), key, local, place, 0.5)
    out = keyed_dropout(torch.full_like(x, math.inf), key, local, place, 0.5)
    assert (out[mask == 0] == 0).all()
    assert out[mask != 0].isinf().all()


def test_a_tokens_bits_do_not_depend_on_the_others():
    x, key, local, place = batch(40, 64)
    whole = keyed_dropout(x, key, local, place, 0.5)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).to(DEVICE)[:11]
    assert torch.equal(keyed_dropout(x[order], key[order], local[order], place, 0.5), whole[order])


def test_a_wider_layer_begins_with_the_same_bits():
    _, key, local, place = batch(20, 1)
    assert torch.equal(keep_lanes(key, local, place, 64)[:, :33], keep_lanes(key, local, place, 33))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_share_that_is_kept(p: float):
    key, local = keys_and_locals(100, 40)
    mask = keyed_dropout(torch.ones(4000, 256, device=DEVICE), key, local, number(3), p)
    sigma = math.sqrt(p * (1 - p) / mask.numel())
    assert abs((mask != 0).double().mean().item() - (1 - p)) < 4 * sigma
    for dim in (0, 1):  # no token and no column is favoured
        share = (mask != 0).double().mean(dim)
        assert (share - (1 - p)).abs().max() < 6 * math.sqrt(p * (1 - p) / mask.shape[dim])


def chi_square(lanes: Tensor) -> float:
    """Over the 256 values of the upper byte; 255 is expected, with a deviation of 22.6."""
    counts = torch.bincount((lanes.int().flatten() + 32768) >> 8, minlength=256).double()
    expected = lanes.numel() / 256
    return ((counts - expected) ** 2 / expected).sum().item()


def correlation(a: Tensor, b: Tensor) -> float:
    """In deviations of what chance gives."""
    a, b = (t.double().flatten() / (65536 / math.sqrt(12)) for t in (a, b))
    return abs((a * b).mean().item()) * math.sqrt(a.numel())


def faults(width: int = 256) -> list[str]:
    """What of the bits is not like chance."""
    key, local = keys_and_locals(50, 40)

    def of(place: int, first: int = 0) -> Tensor:
        return keep_lanes(key + first, local, number(place), width)

    lanes = of(11)
    rows = lanes.view(50, 40, width)
    pairs = {
        "columns": (lanes[:, 1:], lanes[:, :-1]),
        "columns two apart": (lanes[:, 2:], lanes[:, :-2]),
        "tokens": (rows[:, 1:], rows[:, :-1]),
        "keys": (rows[1:], rows[:-1]),
        "places": (lanes, of(12)),
        "places far apart": (lanes, of(signed(lowbias32(11), 32))),
    }
    found = [name for name, (a, b) in pairs.items() if correlation(a, b) > 4]
    return found + ["values"] * (abs(chi_square(lanes) - 255) > 5 * math.sqrt(2 * 255))


def test_the_bits_look_like_chance():
    assert faults() == []


def test_a_bad_hash_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(noise, "mix", lambda h: h)
    assert {"columns", "tokens", "keys", "values"} & set(faults())


@pytest.mark.thin(8)
@pytest.mark.parametrize("p", [0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernel_gives_the_same_bits(dtype: torch.dtype, shape: tuple[int, int], p: float):
    pytest.importorskip("triton")
    from inlay.kernels.dropout import dropout

    x, key, local, place = batch(*shape, dtype)
    found = []
    for run in (dropout, lambda *a: noise._KeyedDropout.apply(*a)):
        leaf = x.clone().requires_grad_()
        out = run(leaf, key, local, place, p)
        found.append((out.detach(), *torch.autograd.grad(out, leaf, x)))
    for ours, plain in zip(*found, strict=True):
        if dtype == torch.bfloat16 and not CUDA:  # the interpreter rounds towards zero
            assert torch.equal(ours == 0, plain == 0)
            assert torch.allclose(ours, plain, rtol=2**-7)
        else:
            assert torch.equal(ours, plain)


def test_the_kernel_takes_views():
    pytest.importorskip("triton")
    from inlay.kernels.dropout import dropout

    x, key, local, place = batch(20, 64)
    for view in (x[:, 10:43], x.t().contiguous().t(), x[:, :1].expand(20, 33)):
        assert torch.equal(dropout(view, key, local, place, 0.3), keyed_dropout(view, key, local, place, 0.3))


def test_the_operator_is_registered_as_torch_wants_it():
    pytest.importorskip("triton")
    import inlay.kernels.dropout  # noqa: F401

    x, key, local, place = batch(5, 9)
    torch.library.opcheck(torch.ops.inlay.dropout.default, (x.requires_grad_(), key, local, place, 0.3))


def test_the_kernel_in_a_compiled_function():
    pytest.importorskip("triton")
    from inlay.kernels.dropout import dropout

    compiled = torch.compile(dropout, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((5, 9), (7, 12)):
        x, key, local, place = batch(*shape)
        assert torch.equal(compiled(x, key, local, place, 0.3), keyed_dropout(x, key, local, place, 0.3))


@pytest.mark.full
def test_compiled():
    compiled = torch.compile(keyed_dropout, fullgraph=True, dynamic=True)
    for shape in ((20, 64), (33, 7)):
        x, key, local, place = batch(*shape)
        found = []
        for run in (compiled, keyed_dropout):
            leaf = x.clone().requires_grad_()
            out = run(leaf, key, local, place, 0.3)
            found.append((out.detach(), *torch.autograd.grad(out, leaf, x)))
        for ours, plain in zip(*found, strict=True):
            assert torch.equal(ours, plain)


@pytest.mark.slow
@pytest.mark.skipif(CUDA, reason="of the CPU")
def test_it_costs_little_on_one_core():
    x, key, local, place = batch(1000, 384)
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        keyed_dropout(x, key, local, place, 0.1)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 3e-3


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_in_a_cuda_graph():
    x, key, local, place = batch(100, 768, torch.bfloat16)
    keyed_dropout(x, key, local, place, 0.1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = keyed_dropout(x, key, local, place, 0.1)
    for step in range(3):
        key.add_(1)
        place.fill_(step)
        graph.replay()
        assert torch.equal(out, noise._KeyedDropout.apply(x, key, local, place, 0.1))
