"""Tables: one buffer for all numbers of a pass, and segments as kernels want them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from inlay.bank.route import Segments
from inlay.bank.tables import Tables, bucket


def test_a_buffer_gives_back_what_was_packed():
    parts = {
        "ids": torch.arange(7),
        "weights": torch.tensor([[0.5, -1.5], [2.0, float("inf")]]),
        "none": torch.zeros(0, 3, dtype=torch.int32),
        "flags": torch.tensor([True, False]),
    }
    tables = Tables(parts)
    found = tables.unpack(tables.pack())
    for name, part in parts.items():
        assert found[name].shape == part.shape
        assert torch.equal(found[name].to(part.dtype), part), name
    assert found["ids"].dtype == torch.int32
    assert found["weights"].dtype == torch.float32
    assert all(t.storage_offset() % 32 == 0 for t in found.values())


def test_the_shape_says_everything_but_the_numbers():
    one, other = Tables({"a": torch.arange(5)}), Tables({"a": torch.arange(5) * 3})
    assert one.shape == other.shape
    assert one.shape != Tables({"a": torch.arange(6)}).shape
    assert one.shape != Tables({"b": torch.arange(5)}).shape
    assert one.shape != Tables({"a": torch.arange(5).float()}).shape


@given(n=st.integers(1, 10**6), least=st.sampled_from([4, 8, 128]))
def test_a_bucket_wastes_little(n: int, least: int):
    size = bucket(n, least)
    assert n <= size < n + max(least, n / 8)
    assert size % least == 0
    assert bucket(size, least) == size


@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=9),
    block=st.sampled_from([16, 32]),
    extra=st.integers(0, 3),
)
def test_tiles_cover_every_token_once(counts: list[int], block: int, extra: int):
    segments = Segments(range(1, len(counts) + 1), counts)
    size, places = bucket(max(1, sum(counts)), 128), len(segments.runs) + extra
    if not segments.runs:
        return
    tables = segments.tables(size, places, block)
    owner = [-1] * size
    for start, count, place in tables["tiles"].tolist():
        assert count <= block
        for token in range(start, start + count):
            assert owner[token] == -1, "a token is in two tiles"
            owner[token] = place
    assert owner == tables["place"].tolist()
    bounds = tables["bounds"].tolist()
    assert len(bounds) == places + 1
    assert [bounds[owner[t]] <= t < bounds[owner[t] + 1] for t in range(sum(counts))] == [True] * sum(counts)
    slots = [slot for _, _, slot in segments.runs]
    entries = segments.entries({slot: 10 + slot for slot in slots[::2]}, places)
    assert entries.tolist() == [10 + s if i % 2 == 0 else 0 for i, s in enumerate(slots)] + [0] * extra
    assert segments.entries({99: 1}, places) is None
