"""Attention over a packed batch of short rows, one program per row and head.

A row's keys and values are read once and its scores never leave the chip, so the time is that of reading q, k, v and
writing the result. Blocks are small (32 tokens) and the loops over them end where the row ends: what is computed
follows the row's own length, not the longest row's. Rows of any length come out right, but from some 128 tokens on
other kernels are faster (`takes`).

The backward pass recomputes the probabilities from each query's logsumexp. The one program owns all gradients of its
row and head, so nothing is added up between programs and results are the same in every run.

Importing this module needs triton.
"""

# ruff: noqa: N803, N806 (compile-time arguments and pointers are capitals)
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.operators import fake, gradient, operator

LONGEST = 128
_FEW = 2112
"""Up to this many programs are few: sixteen per multiprocessor of a large GPU."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_FAR = tl.constexpr(-1e30)
"""The score of a key that a query may not see. It is finite, so that a block in which a query sees nothing has no NaN:
what it adds is wiped out by the first key that the query does see, and every query sees itself."""


def takes(q: Tensor, longest: int) -> bool:
    """Whether `attention` is possible and fast on CUDA, for q [tokens, heads, d] and this longest row."""
    return q.dtype in _DTYPES and q.shape[-1] in (16, 32, 64, 128) and longest <= LONGEST


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu: Tensor,
    scale: float,
    causal: bool = False,
    window: int = -1,
    bias: Tensor | None = None,
) -> Tensor:
    """Every token attends to its own row: [tokens, heads, d] -> the same shape, contiguous.

    Args:
        q: queries; like k and v it may be a view with any strides, as long as the last dimension is contiguous.
        k: keys, of the same shape.
        v: values, of the same shape.
        cu: int32 [rows + 1]; row r owns the tokens cu[r] to cu[r + 1] - 1. Rows may be empty. The last one must end at
            the last token: no program writes the tokens after it.
        scale: of the scores.
        causal: whether a token sees only itself and those before it.
        window: how far away a token may be to be seen; negative for any distance.
        bias: [heads, 2n - 1] what is added to a score, by the key's place minus the query's, from 1 - n to n - 1; n is
            at least the longest row's length.
    """
    out: Tensor = _forward(q, k, v, cu, scale, causal, window, bias)[0]
    return out


@triton.jit
def _visible(query, key, length, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """[queries, keys] whether a query may see a key."""
    visible = (query < length)[:, None] & (key < length)[None, :]
    distance = query[:, None] - key[None, :]
    if CAUSAL:
        visible = visible & (distance >= 0)
    if WINDOW:
        visible = visible & (tl.abs(distance) <= window)
    return visible


@triton.jit
def _biased(scores, BIAS, query, key, visible, middle):
    """Scores in units of log 2, plus the bias of their distance."""
    distance = key[None, :] - query[:, None]
    return scores + tl.load(BIAS + middle + distance, mask=visible, other=0.0).to(tl.float32) * _LOG2E


@triton.jit
def _tile(base, first, length, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK, D] of a row's tokens from `first` on; zeros after the row's end."""
    token = first + tl.arange(0, BLOCK)
    return tl.load(base + token[:, None] * stride + tl.arange(0, D)[None, :], mask=(token < length)[:, None], other=0.0)


@triton.jit
def _put(base, values, first, length, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    token = first + tl.arange(0, BLOCK)
    at = base + token[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(at, values.to(base.dtype.element_ty), mask=(token < length)[:, None])


@triton.jit(do_not_specialize=["tokens", "window"])
def _attend(
    Q, K, V, OUT, LSE, CU, BIAS, middle, tokens, heads,
    q_token, q_head, k_token, k_head, v_token, v_head, scale, window,
    D: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(CU + row).to(tl.int64)
    length = (tl.load(CU + row + 1) - start).to(tl.int32)
    Q += start * q_token + head * q_head
    K += start * k_token + head * k_head
    V += start * v_token + head * v_head
    OUT += (start * heads + head) * D
    BIAS += head * (2 * middle + 1)
    LSE += head.to(tl.int64) * tokens + start
    for i in range(0, length, BLOCK):
        query = i + tl.arange(0, BLOCK)
        q = _tile(Q, i, length, q_token, D, BLOCK)
        most = tl.full([BLOCK], _FAR, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        summed = tl.zeros([BLOCK, D], tl.float32)
        low, high = 0, length
        if WINDOW:
            low = tl.maximum(0, i - window) // BLOCK * BLOCK
            high = tl.minimum(length, i + BLOCK + window)
        if CAUSAL:
            high = tl.minimum(high, i + BLOCK)
        for j in range(low, high, BLOCK):
            k = _tile(K, j, length, k_token, D, BLOCK)
            v = _tile(V, j, length, v_token, D, BLOCK)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * _LOG2E)
            key = j + tl.arange(0, BLOCK)
            visible = _visible(query, key, length, window, CAUSAL, WINDOW)
            if BIASED:
                scores = _biased(scores, BIAS, query, key, visible, middle)
            scores = tl.where(visible, scores, _FAR)
            higher = tl.maximum(most, tl.max(scores, 1))
            p = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(most - higher)
            total = total * fade + tl.sum(p, 1)
            summed = summed * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            most = higher
        _put(OUT, summed / total[:, None], i, length, heads * D, D, BLOCK)
        tl.store(LSE + query, (most + tl.log2(total)) * _LN2, mask=query < length)


@triton.jit
def _scores_back(
    q, k, v, g, lse, delta, BIAS, DB, middle, i, j, length, scale, window,
    BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIASED: tl.constexpr, BIAS_BACK: tl.constexpr,
):  # fmt: skip
    """[queries, keys] the probabilities of a block, and the gradient of its scaled scores times the scale.

    The gradient of the scores, without the scale, goes to DB, by query and distance.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * _LOG2E)
    query, key = i + tl.arange(0, BLOCK), j + tl.arange(0, BLOCK)
    visible = _visible(query, key, length, window, CAUSAL, WINDOW)
    if BIASED:
        scores = _biased(scores, BIAS, query, key, visible, middle)
    p = tl.exp2(tl.where(visible, scores - lse[:, None] * _LOG2E, _FAR))
    dp = tl.dot(g, tl.trans(v), input_precision="ieee")
    ds = p * (dp - delta[:, None])
    if BIAS_BACK:
        at = query[:, None].to(tl.int64) * (2 * middle + 1) + middle + key[None, :] - query[:, None]
        tl.store(DB + at, ds, mask=visible)
    return p.to(q.dtype), (ds * scale).to(q.dtype)


@triton.jit
def _queries(Q, G, OUT, LSE, i, length, q_token, g_token, heads, D: tl.constexpr, BLOCK: tl.constexpr):
    """A block of queries for the backward pass: q, gradient, logsumexp, delta."""
    q = _tile(Q, i, length, q_token, D, BLOCK)
    g = _tile(G, i, length, g_token, D, BLOCK)
    out = _tile(OUT, i, length, heads * D, D, BLOCK)
    query = i + tl.arange(0, BLOCK)
    lse = tl.load(LSE + query, mask=query < length, other=0.0)
    return q, g, lse, tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)


@triton.jit(do_not_specialize=["tokens", "window"])
def _attend_back(
    Q, K, V, G, OUT, LSE, CU, DQ, BIAS, DB, middle, tokens, heads,
    q_token, q_head, k_token, k_head, v_token, v_head, g_token, g_head, scale, window,
    D: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BIASED: tl.constexpr, BIAS_BACK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(CU + row).to(tl.int64)
    length = (tl.load(CU + row + 1) - start).to(tl.int32)
    Q += start * q_token + head * q_head
    K += start * k_token + head * k_head
    V += start * v_token + head * v_head
    G += start * g_token + head * g_head
    OUT += (start * heads + head) * D
    DQ += (start * 3 * heads + head) * D
    DK = DQ + heads * D
    DV = DK + heads * D
    step = 3 * heads * D
    BIAS += head * (2 * middle + 1)
    LSE += head.to(tl.int64) * tokens + start
    DB += (head.to(tl.int64) * tokens + start) * (2 * middle + 1)
    for j in range(0, length, BLOCK):
        k = _tile(K, j, length, k_token, D, BLOCK)
        v = _tile(V, j, length, v_token, D, BLOCK)
        dk = tl.zeros([BLOCK, D], tl.float32)
        dv = tl.zeros([BLOCK, D], tl.float32)
        low, high = 0, length
        if WINDOW:
            low = tl.maximum(0, j - window) // BLOCK * BLOCK
            high = tl.minimum(length, j + BLOCK + window)
        if CAUSAL:
            low = j
        for i in range(low, high, BLOCK):
            q, g, lse, delta = _queries(Q, G, OUT, LSE, i, length, q_token, g_token, heads, D, BLOCK)
            p, ds = _scores_back(
                q, k, v, g, lse, delta, BIAS, DB, middle, i, j, length, scale, window,
                BLOCK, CAUSAL, WINDOW, BIASED, BIAS_BACK,
            )  # fmt: skip
            dv += tl.dot(tl.trans(p), g, input_precision="ieee")
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
            if length <= BLOCK:  # the usual row: its queries' gradient needs no second pass
                _put(DQ, tl.dot(ds, k, input_precision="ieee"), i, length, step, D, BLOCK)
        _put(DK, dk, j, length, step, D, BLOCK)
        _put(DV, dv, j, length, step, D, BLOCK)
    if length > BLOCK:
        for i in range(0, length, BLOCK):
            q, g, lse, delta = _queries(Q, G, OUT, LSE, i, length, q_token, g_token, heads, D, BLOCK)
            dq = tl.zeros([BLOCK, D], tl.float32)
            low, high = 0, length
            if WINDOW:
                low = tl.maximum(0, i - window) // BLOCK * BLOCK
                high = tl.minimum(length, i + BLOCK + window)
            if CAUSAL:
                high = tl.minimum(high, i + BLOCK)
            for j in range(low, high, BLOCK):
                k = _tile(K, j, length, k_token, D, BLOCK)
                v = _tile(V, j, length, v_token, D, BLOCK)
                p, ds = _scores_back(
                    q, k, v, g, lse, delta, BIAS, DB, middle, i, j, length, scale, window,
                    BLOCK, CAUSAL, WINDOW, BIASED, False,
                )  # fmt: skip
                dq += tl.dot(ds, k, input_precision="ieee")
            _put(DQ, dq, i, length, step, D, BLOCK)


def _constants(q: Tensor, rows: int, causal: bool, window: int, bias: Tensor | None) -> dict[str, Any]:
    return {
        "D": q.shape[2],
        "BLOCK": 64 if _is_few(q, rows) else 32,
        "CAUSAL": causal,
        "WINDOW": window >= 0,
        "BIASED": bias is not None,
    }


def _is_few(q: Tensor, rows: int) -> bool:
    """Whether there are too few programs to hide each other's latency."""
    return q.element_size() == 2 and q.shape[2] <= 64 and rows * q.shape[1] <= _FEW


def _launch(q: Tensor, rows: int, backward: bool) -> dict[str, int]:
    """Few warps per program: blocks are small, and many programs side by side hide the latency of memory."""
    if _is_few(q, rows):
        return {"num_warps": 4, "num_stages": 1 if backward else 2}
    if q.dtype == torch.float32:  # no tensor cores: more threads, or registers spill
        return {"num_warps": 8 if backward else 4, "num_stages": 1}
    narrow = q.shape[2] <= 64
    if backward:
        return {"num_warps": 2 if narrow else 4, "num_stages": 1} | ({"maxnreg": 168} if narrow else {})
    return {"num_warps": 1 if narrow else 4, "num_stages": 2}


def _rowwise(x: Tensor) -> Tensor:
    """The kernels take any strides but the last."""
    return x if x.stride(2) == 1 else x.contiguous()


def _table(bias: Tensor | None, otherwise: Tensor) -> tuple[Tensor, int]:
    """The bias as kernels take it, and the index of distance 0 in it."""
    return (otherwise, 0) if bias is None else (bias.contiguous(), bias.shape[1] // 2)


@operator("short_attention", has_gradient=True)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu: Tensor, scale: float, causal: bool, window: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The result and [heads, tokens] the logsumexp of each query's scores."""
    assert q.shape == k.shape == v.shape, "queries, keys and values have one shape"
    assert cu.dtype == torch.int32, "boundaries are int32"
    tokens, heads, _ = q.shape
    q, k, v = _rowwise(q), _rowwise(k), _rowwise(v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty(heads, tokens, dtype=torch.float32)
    programs = (cu.numel() - 1) * heads
    if programs > 0 and tokens > 0:
        strides = [n for t in (q, k, v) for n in t.stride()[:2]]
        with torch.cuda.device_of(q):
            _attend[(programs,)](
                q, k, v, out, lse, cu, *_table(bias, q), tokens, heads, *strides, scale, window,
                **_constants(q, cu.numel() - 1, causal, window, bias), **_launch(q, cu.numel() - 1, backward=False),
            )  # fmt: skip
    return out, lse


@fake(_forward)
def _(
    q: Tensor, k: Tensor, v: Tensor, cu: Tensor, scale: float, causal: bool, window: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@operator("short_attention_backward", has_gradient=False)
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor, bias: Tensor | None,
    scale: float, causal: bool, window: int, wants_bias: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[tokens, 3, heads, d]: the gradients of q, k and v lie side by side, as one product before them needs them.

    And, if wanted, [heads, 2n - 1] that of the bias: each query writes to a place of its own, then all are added.
    """
    tokens, heads, width = q.shape
    q, k, v, grad = _rowwise(q), _rowwise(k), _rowwise(v), _rowwise(grad)
    grads = q.new_empty(tokens, 3, heads, width)
    bias_grads = q.new_zeros(_bias_grads_shape(q, bias, wants_bias), dtype=torch.float32)
    programs = (cu.numel() - 1) * heads
    if programs > 0 and tokens > 0:
        strides = [n for t in (q, k, v, grad) for n in t.stride()[:2]]
        table, middle = _table(bias, q)
        with torch.cuda.device_of(q):
            _attend_back[(programs,)](
                q, k, v, grad, out, lse, cu, grads, table, bias_grads, middle, tokens, heads, *strides, scale, window,
                **_constants(q, cu.numel() - 1, causal, window, bias), **_launch(q, cu.numel() - 1, backward=True),
                BIAS_BACK=wants_bias,
            )  # fmt: skip
    return grads, bias_grads.sum(1)


def _bias_grads_shape(q: Tensor, bias: Tensor | None, wants_bias: bool) -> tuple[int, int, int]:
    """[heads, tokens, distances]."""
    return (q.shape[1], q.shape[0], bias.shape[1]) if wants_bias and bias is not None else (0, 0, 0)


@fake(_backward)
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor, bias: Tensor | None,
    scale: float, causal: bool, window: int, wants_bias: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    heads, _, distances = _bias_grads_shape(q, bias, wants_bias)
    return q.new_empty(q.shape[0], 3, *q.shape[1:]), q.new_empty(heads, distances, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu, *ctx.rest, bias = inputs
    ctx.save_for_backward(q, k, v, *output, cu, bias)


def _gradients(ctx: Any, grad: Tensor, of_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    bias, wants_bias = ctx.saved_tensors[-1], bool(ctx.needs_input_grad[-1])
    grads, bias_grad = _backward(grad, *ctx.saved_tensors, *ctx.rest, wants_bias)
    return (*grads.unbind(1), None, None, None, None, bias_grad.to(bias.dtype) if wants_bias else None)


gradient(_forward, _gradients, keep=_save)
