"""Records: one buffer for all numbers of a plan, and runs as kernels want them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from inlay.bank.planning import _tiles, rounded
from inlay.bank.records import Record, host, on_device, pack, shape_of, unpack


@dataclass(frozen=True, eq=False)
class Inner(Record):
    flags: Any
    mode: str = "plain"


@dataclass(frozen=True, eq=False)
class Outer(Record):
    ids: Any
    weights: Any
    none: Any
    inner: Inner
    several: tuple[Inner, ...]
    missing: Any = None
    here: Any = host(default=None)


def outer(n: int = 7, **changes: Any) -> Outer:
    numbers = np.array([[0.5, -1.5], [2.0, np.inf]])
    inner = Inner(np.array([True, False]))
    made = Outer(np.arange(n), numbers, np.zeros((0, 3)), inner, (inner, Inner(np.arange(3))), here=np.arange(9))
    return replace(made, **changes)


def test_a_buffer_gives_back_what_was_packed():
    record = outer()
    for found in (unpack(record, pack(record)), on_device(record, torch.device("cpu"))):
        assert type(found) is Outer
        assert found.ids.tolist() == list(range(7))
        assert found.ids.dtype == found.inner.flags.dtype == torch.int32
        assert found.weights.dtype == torch.float32
        assert torch.equal(found.weights, torch.from_numpy(record.weights).float())
        assert tuple(found.none.shape) == (0, 3)
        assert [one.flags.tolist() for one in (found.inner, *found.several)] == [[1, 0], [1, 0], [0, 1, 2]]
        assert found.missing is None
        assert found.here is record.here
    found = unpack(record, pack(record))
    assert all(t.storage_offset() % 32 == 0 for t in (found.ids, found.weights, found.inner.flags))


def test_the_shape_says_everything_but_the_numbers():
    one = shape_of(outer())
    hash(one)
    assert one == shape_of(outer(ids=np.arange(7) * 3))
    assert one == shape_of(outer(here=None))
    assert one != shape_of(outer(8))
    assert one != shape_of(outer(ids=np.arange(7).astype(np.float32)))
    assert one != shape_of(outer(missing=np.arange(3)))
    assert one != shape_of(outer(inner=Inner(np.array([True, False]), "other")))
    assert one != shape_of(outer(several=()))


@given(n=st.integers(1, 10**6), least=st.sampled_from([4, 8, 128]))
def test_rounding_wastes_little(n: int, least: int):
    size = rounded(n, least)
    assert n <= size < n + max(least, n / 8 + 1)
    assert size % least == 0
    assert rounded(size, least) == size


@given(counts=st.lists(st.integers(1, 90), min_size=1, max_size=9), least=st.sampled_from([128, 4096, 16384]))
def test_tiles_cover_every_token_once(counts: list[int], least: int):
    bounds = np.concatenate(([0], np.cumsum(counts)))
    size, entries = rounded(sum(counts), least), np.arange(2 * len(counts)).reshape(2, -1)
    found = _tiles(bounds, entries, size)
    owner = [-1] * size
    for start, count, place in found.tiles.tolist():
        assert count <= found.block
        for token in range(start, start + count):
            assert owner[token] == -1, "a token is in two tiles"
            owner[token] = place
    assert owner == found.place.tolist()
    ends = found.bounds.tolist()
    assert len(ends) == found.entries.shape[1] + 1
    assert [ends[owner[t]] <= t < ends[owner[t] + 1] for t in range(sum(counts))] == [True] * sum(counts)
    assert np.array_equal(found.entries[:, : len(counts)], entries)
    assert not found.entries[:, len(counts) :].any()
