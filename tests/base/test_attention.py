"""Packed attention: each row attends to itself, as Hugging Face's padded attention has it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples
from torch import Tensor, nn

import inlay
from inlay.base import attention
from inlay.base.attention import RowBounds
from inlay.data.batch import Batch

CPU = torch.device("cpu")
LONG = {"max_position_embeddings": 160}


def lengths(count: int, longest: int, seed: int) -> list[int]:
    """Random, with the edges of a bucket and single tokens among them."""
    draw = random.Random(seed)
    edges = [n for n in (1, 15, 16, 17, 32, 33, longest) if n <= longest]
    found = edges + [draw.randint(1, longest) for _ in range(count - len(edges))]
    draw.shuffle(found)
    return found


# --- the function itself ------------------------------------------------------------------------------------


class Caller(nn.Module):
    """What transformers passes as the attention module."""

    def __init__(self, causal: bool, groups: int = 1):
        super().__init__()
        self.is_causal = causal
        self.num_key_value_groups = groups


def packed(q: Tensor, k: Tensor, v: Tensor, rows: list[int], causal: bool, window: int | None, scale: float | None):
    """[tokens, heads, d] each -> [tokens, heads, d]."""
    inputs = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    width = None if window is None else window + 1
    out, weights = attention.attention(
        Caller(causal), *inputs, None, inlay_rows=RowBounds(rows, CPU), scaling=scale, sliding_window=width
    )
    assert weights is None
    return out[0]


def by_hand(q: Tensor, k: Tensor, v: Tensor, rows: list[int], causal: bool, window: int | None, scale: float | None):
    """One row and one head at a time, with the softmax written out."""
    out, share = torch.empty_like(q), q.shape[1] // k.shape[1]
    for part in torch.split(torch.arange(len(q)), rows):
        distance = part[:, None] - part[None, :]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if causal:
            hidden |= distance < 0
        if window is not None:
            hidden |= distance.abs() > window
        for head in range(q.shape[1]):
            scores = q[part, head] @ k[part, head // share].T * (q.shape[-1] ** -0.5 if scale is None else scale)
            weights = torch.exp(scores.masked_fill(hidden, -torch.inf))
            out[part, head] = (weights / weights.sum(-1, keepdim=True)) @ v[part, head // share]
    return out


def inputs(rows: list[int], heads: int, key_heads: int, seed: int = 0) -> list[Tensor]:
    draw, tokens = torch.Generator().manual_seed(seed), sum(rows)
    return [torch.randn(tokens, n, 8, generator=draw) for n in (heads, key_heads, key_heads)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 3, 20, 200])
@pytest.mark.parametrize(("heads", "key_heads"), [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_equals_the_formula(causal, window, heads, key_heads, scale):
    rows = lengths(12, 50, seed=heads)
    q, k, v = inputs(rows, heads, key_heads)
    expected = by_hand(q, k, v, rows, causal, window, scale)
    torch.testing.assert_close(packed(q, k, v, rows, causal, window, scale), expected, atol=1e-5, rtol=1e-5)


@examples(40, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.booleans(), st.none() | st.integers(0, 45))
def test_equals_the_formula_for_any_rows(rows, causal, window):
    q, k, v = inputs(rows, 2, 1, seed=len(rows))
    expected = by_hand(q, k, v, rows, causal, window, None)
    torch.testing.assert_close(packed(q, k, v, rows, causal, window, None), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3)])
def test_a_wrong_mask_would_be_noticed(causal, window):
    rows = lengths(8, 40, seed=0)
    q, k, v = inputs(rows, 2, 2)
    found = packed(q, k, v, rows, causal, window, None)
    for other in ((not causal, window), (causal, 4 if window is None else window - 1)):
        assert not torch.allclose(found, by_hand(q, k, v, rows, *other, None), atol=1e-3)
    wrong = [rows[0] + 1, rows[1] - 1, *rows[2:]]
    assert not torch.allclose(found, by_hand(q, k, v, wrong, causal, window, None), atol=1e-3)


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3)])
def test_gradients_equal_those_of_the_formula(causal, window):
    rows = lengths(9, 35, seed=1)
    gradients = []
    for compute in (packed, by_hand):
        q, k, v = (t.requires_grad_() for t in inputs(rows, 4, 2))
        out = compute(q, k, v, rows, causal, window, None)
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(5)))
        gradients.append((q.grad, k.grad, v.grad))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_without_rows_it_is_hugging_faces_padded_attention(causal):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, n, 7, 8, generator=draw) for n in (4, 2, 2))
    mask = (torch.arange(7)[None, :] < torch.tensor([7, 3, 5])[:, None])[:, None, None, :].expand(3, 1, 7, 7)
    for given_mask in (mask, None):
        found, _ = attention.attention(Caller(causal, 2), q, k, v, given_mask, scaling=0.3, dropout=0.0)
        expected, _ = sdpa_attention_forward(Caller(causal, 2), q, k, v, given_mask, scaling=0.3, dropout=0.0)
        assert torch.equal(found, expected)


# --- whole models against transformers' own padded pass -----------------------------------------------------

MODELS: list[Any] = [
    pytest.param("bert", LONG, id="bert"),
    pytest.param("roberta", LONG, id="roberta"),
    pytest.param("albert", LONG, id="albert"),
    pytest.param("modernbert", {**LONG, "local_attention": 8}, id="modernbert, window of 8"),
    pytest.param("modernbert", {**LONG, "local_attention": 40}, id="modernbert, window of 40"),
    pytest.param("gpt2", {"n_positions": 160}, id="gpt2"),
    pytest.param("llama", {**LONG, "num_attention_heads": 4, "num_key_value_heads": 2}, id="llama, grouped queries"),
    pytest.param("qwen2", LONG, id="qwen2, one key head"),
    pytest.param(
        "qwen2",
        {**LONG, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "layer_types": None},
        id="qwen2, causal window of 5",
    ),
]


def by_transformers(model: Any, batch: Batch) -> list[Tensor]:
    """The padded batch through the model alone."""
    rows = tiny.rows_of(batch)
    # not zero: RoBERTa takes positions from where ids are its padding
    padding = getattr(model.config, "pad_token_id", None) or 0
    ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=padding)
    mask = (torch.arange(ids.shape[1]) < torch.from_numpy(batch.lengths).unsqueeze(1)).long()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return [row[:n] for row, n in zip(states, batch.lengths, strict=True)]


def make_batch(rows: list[int]) -> Batch:
    draw = random.Random(9)
    return Batch.of([[draw.randrange(5, tiny.VOCABULARY) for _ in range(n)] for n in rows])


@pytest.mark.parametrize(("arch", "changes"), MODELS)
def test_a_packed_model_equals_transformers_padded(arch, changes):
    model = tiny.model(arch, **changes)
    assert model.config._attn_implementation == "sdpa"
    batch = make_batch(lengths(16, 150, seed=2))
    expected = by_transformers(model, batch)
    host = inlay.Host(model)
    for is_packed in (True, False):
        with torch.no_grad():
            found = host.hidden(batch, [None] * 16, packed=is_packed).rows()
        for i, (row, wanted) in enumerate(zip(found, expected, strict=True)):
            tiny.assert_close(row, wanted, f"row {i} of {batch.lengths[i]}, packed: {is_packed}")


@pytest.mark.parametrize(("arch", "changes"), MODELS)
def test_a_row_does_not_depend_on_its_neighbours(arch, changes):
    host = inlay.Host(tiny.model(arch, **changes))
    rows = [20, 33, 1, 16]
    batch = make_batch(rows)
    others = Batch.of([[7] * 33, batch.ids[20:53].tolist(), [8] * 40, [9], [10] * 32])
    with torch.no_grad():
        first = host.hidden(batch, [None] * 4).rows()[1]
        among_others = host.hidden(others, [None] * 5).rows()[1]
        alone = host.hidden(batch.take([1]), [None]).rows()[0]
    tiny.assert_close(among_others, first)
    tiny.assert_close(alone, first)


@pytest.mark.parametrize(("arch", "narrow", "wide"), [("modernbert", 8, 10), ("modernbert", 40, 42)])
def test_another_window_would_be_noticed(arch, narrow, wide):
    batch, states = make_batch([120]), []
    for window in (narrow, wide):
        host = inlay.Host(tiny.model(arch, **LONG, local_attention=window))
        with torch.no_grad():
            states.append(host.hidden(batch, [None]).states)
    assert (states[0] - states[1]).abs().max() > 1e-4


# --- rows and buckets ---------------------------------------------------------------------------------------


@examples(60, derandomize=True)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=20))
def test_buckets_and_their_restoring_are_permutations(rows):
    found, tokens = RowBounds(rows, CPU), sum(rows)
    order = torch.cat([b.gather.flatten() if b.valid is None else b.gather[b.valid] for b in found.buckets])
    assert sorted(order.tolist()) == list(range(tokens))
    padded = torch.cat([bucket.gather.flatten() for bucket in found.buckets])
    valid = torch.cat([(torch.ones_like(b.gather) if b.valid is None else b.valid).flatten() for b in found.buckets])
    assert torch.equal(padded[found.restore], torch.arange(tokens))
    assert valid[found.restore].all()
    assert found.boundaries.tolist() == [0, *torch.tensor(rows).cumsum(0).tolist()]
    assert found.longest == max(rows)


@examples(60, derandomize=True)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=20))
def test_a_bucket_holds_whole_rows_of_similar_length_and_little_padding(rows):
    found = RowBounds(rows, CPU)
    starts, seen = dict(zip(found.starts, rows, strict=True)), []
    for bucket in found.buckets:
        valid = torch.ones_like(bucket.gather, dtype=torch.bool) if bucket.valid is None else bucket.valid
        assert (bucket.valid is None) == bool(valid.all())
        for positions, mask in zip(bucket.gather, valid, strict=True):
            first, length = int(positions[0]), int(mask.sum())
            assert starts[first] == length
            assert positions[mask].tolist() == list(range(first, first + length))
            assert set(positions[~mask].tolist()) <= {first}
            assert bucket.gather.shape[1] - length < 16
            seen.append(first)
    assert sorted(seen) == found.starts


@pytest.mark.parametrize("counts", [[3, 40, 17, 9, 1], [16, 16], [5], [33, 2, 33]])
def test_gradients_are_those_of_every_row_alone(counts, monkeypatch):
    noise, tokens = torch.Generator().manual_seed(0), sum(counts)
    qkv = [torch.randn(tokens, 2, 4, generator=noise, requires_grad=True) for _ in range(3)]
    weight = torch.randn(tokens, 2, 4, generator=noise)

    def gradients(run: Any) -> list[Tensor]:
        return list(torch.autograd.grad((run(*qkv) * weight).sum(), qkv))

    def alone(*qkv: Tensor) -> Tensor:
        rows = zip(*(torch.split(t.transpose(0, 1), counts, 1) for t in qkv), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*row).transpose(0, 1) for row in rows])

    def packed(*qkv: Tensor) -> Tensor:
        return attention._unpacked(*qkv, RowBounds(counts, CPU), None, False, None)

    def apart(one: list[Tensor], other: list[Tensor]) -> float:
        return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))

    expected = gradients(alone)
    assert apart(gradients(packed), expected) < 1e-5
    if len(set(counts)) > 2:  # the control: answers of padding that are looked at
        moved = attention._moved
        monkeypatch.setattr(attention, "_moved", lambda x, to, back, _: moved(x, to, back, None))
        assert apart(gradients(packed), expected) > 1e-3


def test_empty_rows_are_left_out():
    found = RowBounds([0, 3, 0, 2, 0], CPU)
    assert found.lengths == [3, 2]
    assert found.boundaries.tolist() == [0, 3, 5]
    q, k, v = inputs([3, 2], 2, 2)
    out, _ = attention.attention(
        Caller(False), *(t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)), None, inlay_rows=found
    )
    expected = [
        F.scaled_dot_product_attention(*(t[s].transpose(0, 1) for t in (q, k, v))).transpose(0, 1)
        for s in (slice(0, 3), slice(3, 5))
    ]
    torch.testing.assert_close(out[0], torch.cat(expected))


def test_registering_twice_is_harmless():
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    attention.register()
    attention.register()
    assert AttentionInterface()[attention.NAME] is attention.attention
    assert AttentionMaskInterface()[attention.NAME] is sdpa_mask
