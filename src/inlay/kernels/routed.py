"""Triton kernels of the routed primitives; `routed_linear`, `routed_bottleneck` and `routed_sums` launch them.

A batch is sorted by slot; the slots present are numbered ("places"), and each owns one run of tokens.

    bounds [S + 1]  place s owns tokens bounds[s] .. bounds[s + 1] - 1; no token belongs to a padded place
    tiles [n, 3]    (start, count, place): at most BLOCK tokens of one place; count 0 pads
    entry [S]       each place's entry in the stacks; 0 is "not in this group" and is never read nor written

Kernels over tiles run cdiv(tokens, BLOCK) further programs: they write the zeros of tokens that no place owns. Kernels
over places run one more program per entry, for the zeros of entries that no place has. So no output is filled first.
Sums over a long place are cut into parts, added in order: no atomics, so two runs give the same bits. Numbers that
change from batch to batch are not specialised, so nothing compiles twice.
"""

# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803 (compile-time arguments are capitals)

import triton
import triton.language as tl

SIZES = ["n", "places", "tokens", "chunk"]


@triton.jit
def _tanh(x):
    """The quotient loses small numbers to cancellation; the series loses large ones."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-1.0 / 3 + s * (2.0 / 15 + s * (-17.0 / 315 + s * (62.0 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def _activate(h, ACTIVATION: tl.constexpr):
    """act(h) of an fp32 block; comparisons are written so that NaN stays NaN."""
    if ACTIVATION == "gelu":
        h = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    elif ACTIVATION == "relu":
        h = tl.where(h < 0, 0.0, h)
    elif ACTIVATION == "tanh":
        h = _tanh(h)
    elif ACTIVATION == "swish":
        h = h * tl.sigmoid(h)
    elif ACTIVATION == "leaky_relu":
        h = tl.where(h < 0, 0.01 * h, h)
    else:
        tl.static_assert(ACTIVATION == "identity")
    return h


@triton.jit
def _slope(h, ACTIVATION: tl.constexpr):
    """act'(h) of an fp32 block."""
    if ACTIVATION == "gelu":
        slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
    elif ACTIVATION == "relu":
        slope = tl.where(h > 0, 1.0, 0.0)
    elif ACTIVATION == "tanh":
        t = _tanh(h)
        slope = 1.0 - t * t
    elif ACTIVATION == "swish":
        s = tl.sigmoid(h)
        slope = s * (1.0 + h * (1.0 - s))
    elif ACTIVATION == "leaky_relu":
        slope = tl.where(h > 0, 1.0, 0.01)
    else:
        tl.static_assert(ACTIVATION == "identity")
        slope = tl.full(h.shape, 1.0, tl.float32)
    return slope


@triton.jit
def _tile(index, tiles_ptr, entry_ptr, bounds_ptr, n, places, tokens, BLOCK: tl.constexpr):
    """(rows [BLOCK], which of them belong to this program, their entry, whether any do)."""
    lane = tl.arange(0, BLOCK)
    if index < n:
        start = tl.load(tiles_ptr + 3 * index)
        count = tl.load(tiles_ptr + 3 * index + 1)
        place = tl.load(tiles_ptr + 3 * index + 2)
        busy = count > 0
        inside = lane < count
        entry = tl.load(entry_ptr + place, mask=busy, other=0)
    else:
        start = (index - n) * BLOCK
        first = tl.load(bounds_ptr)
        last = tl.load(bounds_ptr + places)
        busy = (start < first) | (start + BLOCK > last)
        row = start + lane
        inside = (row < tokens) & ((row < first) | (row >= last))
        entry = tl.full((), 0, tl.int32)
    return (start + lane).to(tl.int64), inside, entry.to(tl.int64), busy


@triton.jit(do_not_specialize=SIZES)
def linear_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    out_ptr,
    tiles_ptr,
    entry_ptr,
    bounds_ptr,
    n,
    places,
    tokens,
    d_in,
    d_out,
    x_row,
    w_entry,
    w_in,
    w_out,
    b_entry,
    BLOCK: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [tokens, d_out] = x times each tile's own matrix, plus its bias.

    Programs of one tile are neighbours, so that its rows are read from memory once and then from the cache.
    """
    blocks = tl.cdiv(d_out, BLOCK_OUT)
    program = tl.program_id(0)
    rows, inside, entry, busy = _tile(program // blocks, tiles_ptr, entry_ptr, bounds_ptr, n, places, tokens, BLOCK)
    if busy:
        cols = program % blocks * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        valid = cols < d_out
        acc = tl.zeros((BLOCK, BLOCK_OUT), tl.float32)
        if entry != 0:
            inner = tl.arange(0, BLOCK_IN)
            x_at = x_ptr + rows[:, None] * x_row + inner[None, :]
            w_at = w_ptr + entry * w_entry + inner[:, None] * w_in + cols[None, :] * w_out
            for k in range(0, d_in, BLOCK_IN):
                there = inner < d_in - k
                x = tl.load(x_at, mask=inside[:, None] & there[None, :], other=0.0)
                w = tl.load(w_at, mask=there[:, None] & valid[None, :], other=0.0)
                acc = tl.dot(x, w.to(x.dtype), acc, input_precision=PRECISION)
                x_at += BLOCK_IN
                w_at += BLOCK_IN * w_in
            if b_ptr is not None:
                acc += tl.load(b_ptr + entry * b_entry + cols, mask=valid, other=0.0).to(tl.float32)[None, :]
        out_at = out_ptr + rows[:, None] * d_out + cols[None, :]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & valid[None, :])


@triton.jit(do_not_specialize=SIZES)
def bottleneck_kernel(
    x_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    b2_ptr,
    scale_ptr,
    h_ptr,
    mid_ptr,
    out_ptr,
    tiles_ptr,
    entry_ptr,
    bounds_ptr,
    n,
    places,
    tokens,
    d_in,
    d_out,
    m,
    x_row,
    w1_entry,
    w1_in,
    w1_out,
    w2_entry,
    w2_in,
    w2_out,
    b1_entry,
    b2_entry,
    scale_entry,
    BACKWARD: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Through the bottleneck and back out; its [BLOCK, m] numbers never leave the chip in between.

    forward:   mid = scale (x w1 + b1)                        (kept for the backward), out = act(mid) w2 + b2
    BACKWARD:  mid = scale (x w1) act'(h), x the gradient     (kept for the weights),  out = mid w2
    """
    rows, inside, entry, busy = _tile(tl.program_id(0), tiles_ptr, entry_ptr, bounds_ptr, n, places, tokens, BLOCK)
    if busy:
        dtype = x_ptr.dtype.element_ty
        chunk = tl.arange(0, CHUNK)
        unit = tl.arange(0, WIDTH)
        valid = unit < m
        mid_at = rows[:, None] * m + unit[None, :]
        mid_there = inside[:, None] & valid[None, :]
        out_at = out_ptr + rows[:, None] * d_out + chunk[None, :]
        if entry == 0:
            tl.store(mid_ptr + mid_at, tl.zeros((BLOCK, WIDTH), dtype), mask=mid_there)
            for k in range(0, d_out, CHUNK):
                there = inside[:, None] & (chunk < d_out - k)[None, :]
                tl.store(out_at, tl.zeros((BLOCK, CHUNK), dtype), mask=there)
                out_at += CHUNK
        else:
            x_at = x_ptr + rows[:, None] * x_row + chunk[None, :]
            w_at = w1_ptr + entry * w1_entry + chunk[:, None] * w1_in + unit[None, :] * w1_out
            acc = tl.zeros((BLOCK, WIDTH), tl.float32)
            for k in range(0, d_in, CHUNK):
                there = chunk < d_in - k
                x = tl.load(x_at, mask=inside[:, None] & there[None, :], other=0.0)
                w = tl.load(w_at, mask=there[:, None] & valid[None, :], other=0.0)
                acc = tl.dot(x, w.to(dtype), acc, input_precision=PRECISION)
                x_at += CHUNK
                w_at += CHUNK * w1_in
            if b1_ptr is not None:
                acc += tl.load(b1_ptr + entry * b1_entry + unit, mask=valid, other=0.0).to(tl.float32)[None, :]
            if scale_ptr is not None:
                acc *= tl.load(scale_ptr + entry * scale_entry).to(tl.float32)
            if BACKWARD:
                h = tl.load(h_ptr + mid_at, mask=mid_there, other=0.0).to(tl.float32)
                mid = (acc * _slope(h, ACTIVATION)).to(dtype)
                tl.store(mid_ptr + mid_at, mid, mask=mid_there)
            else:
                h = acc.to(dtype)  # rounded before the activation: the backward sees the same number
                tl.store(mid_ptr + mid_at, h, mask=mid_there)
                mid = _activate(h.to(tl.float32), ACTIVATION).to(dtype)
            w_at = w2_ptr + entry * w2_entry + unit[:, None] * w2_in + chunk[None, :] * w2_out
            for k in range(0, d_out, CHUNK):
                there = chunk < d_out - k
                w = tl.load(w_at, mask=valid[:, None] & there[None, :], other=0.0)
                out = tl.dot(mid, w.to(dtype), input_precision=PRECISION)
                if b2_ptr is not None:
                    out += tl.load(b2_ptr + entry * b2_entry + k + chunk, mask=there, other=0.0).to(tl.float32)[None, :]
                tl.store(out_at, out.to(dtype), mask=inside[:, None] & there[None, :])
                w_at += CHUNK * w2_out
                out_at += CHUNK


@triton.jit
def _share(entry_ptr, bounds_ptr, places, chunk):
    """(first, last token of this program's part, the entry to write at, the row to keep a part in, whether to work).

    Row -1: the part is all of the place. No two parts have the same row: parts of a place start `chunk` tokens apart,
    and only the first part of another place can start between two of them. Programs after those of the places have
    an entry each, and no tokens: they work if no place has it.
    """
    place = tl.program_id(1)
    part = tl.program_id(2)
    if place < places:
        first = tl.load(bounds_ptr + place)
        last = tl.load(bounds_ptr + place + 1)
        start = first + part * chunk
        end = tl.minimum(start + chunk, last)
        entry = tl.load(entry_ptr + place, mask=start < last, other=0).to(tl.int64)
        row = tl.where(last - first > chunk, 2 * (start // chunk) + (part == 0), -1).to(tl.int64)
        busy = entry != 0
    else:
        entry = (place - places).to(tl.int64)
        holders = tl.full((), 0, tl.int32)
        for s in range(0, places, 128):
            other = s + tl.arange(0, 128)
            there = other < places
            low = tl.load(bounds_ptr + other, mask=there, other=0)
            high = tl.load(bounds_ptr + other + 1, mask=there, other=0)
            other_entry = tl.load(entry_ptr + other, mask=there, other=0)
            holders += tl.sum(((other_entry == entry) & (high > low)).to(tl.int32))
        start = tl.full((), 0, tl.int32)
        end = tl.full((), 0, tl.int32)
        row = tl.full((), -1, tl.int64)
        busy = (part == 0) & ((holders == 0) | (entry == 0))
    return start, end, entry, row, busy


@triton.jit(do_not_specialize=SIZES)
def weight_kernel(
    x_ptr,
    g_ptr,
    dw_ptr,
    db_ptr,
    parts_ptr,
    entry_ptr,
    bounds_ptr,
    places,
    chunk,
    d_in,
    d_out,
    x_row,
    g_row,
    BLOCK: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dw [., d_in, d_out] = x' g and db [., d_out] = column sums of g, over one place's tokens.

    A place of more than `chunk` tokens leaves fp32 parts [., d_in * d_out + d_out] for `total_kernel`.
    """
    start, end, entry, row, busy = _share(entry_ptr, bounds_ptr, places, chunk)
    if busy:
        blocks = tl.cdiv(d_out, BLOCK_OUT)
        in_block = tl.program_id(0) // blocks
        i = in_block * BLOCK_IN + tl.arange(0, BLOCK_IN)
        o = tl.program_id(0) % blocks * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        lane = tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK_IN, BLOCK_OUT), tl.float32)
        sums = tl.zeros((BLOCK, BLOCK_OUT), tl.float32)
        size = d_in.to(tl.int64) * d_out
        width = size
        if db_ptr is not None:
            width += d_out
        for t in range(start, end, BLOCK):
            rows = (t + lane).to(tl.int64)[:, None]
            there = (t + lane < end)[:, None]
            x = tl.load(x_ptr + rows * x_row + i[None, :], mask=there & (i < d_in)[None, :], other=0.0)
            g = tl.load(g_ptr + rows * g_row + o[None, :], mask=there & (o < d_out)[None, :], other=0.0)
            acc = tl.dot(tl.trans(x), g, acc, input_precision=PRECISION)
            if db_ptr is not None:
                sums += g.to(tl.float32)
        at = i.to(tl.int64)[:, None] * d_out + o[None, :]
        there = (i < d_in)[:, None] & (o < d_out)[None, :]
        if row < 0:
            tl.store(dw_ptr + entry * size + at, acc.to(dw_ptr.dtype.element_ty), mask=there)
        else:
            tl.store(parts_ptr + row * width + at, acc, mask=there)
        if db_ptr is not None:
            total = tl.sum(sums, 0)
            if in_block == 0:
                if row < 0:
                    tl.store(db_ptr + entry * d_out + o, total.to(db_ptr.dtype.element_ty), mask=o < d_out)
                else:
                    tl.store(parts_ptr + row * width + size + o, total, mask=o < d_out)


@triton.jit(do_not_specialize=SIZES)
def sum_kernel(
    g_ptr,
    out_ptr,
    parts_ptr,
    entry_ptr,
    bounds_ptr,
    places,
    chunk,
    d,
    g_row,
    BLOCK: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):
    """out [., d] = column sums of g over one place's tokens; parts as in `weight_kernel`."""
    start, end, entry, row, busy = _share(entry_ptr, bounds_ptr, places, chunk)
    if busy:
        o = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        lane = tl.arange(0, BLOCK)
        sums = tl.zeros((BLOCK, BLOCK_OUT), tl.float32)
        for t in range(start, end, BLOCK):
            rows = (t + lane).to(tl.int64)[:, None]
            there = (t + lane < end)[:, None] & (o < d)[None, :]
            sums += tl.load(g_ptr + rows * g_row + o[None, :], mask=there, other=0.0).to(tl.float32)
        total = tl.sum(sums, 0)
        if row < 0:
            tl.store(out_ptr + entry * d + o, total, mask=o < d)
        else:
            tl.store(parts_ptr + row * d + o, total, mask=o < d)


@triton.jit(do_not_specialize=SIZES)
def total_kernel(parts_ptr, out_ptr, extra_ptr, entry_ptr, bounds_ptr, chunk, size, extra, BLOCK: tl.constexpr):
    """out [E, size] and extra [E, extra] at the entry of each place that was cut = its parts, summed in order."""
    place = tl.program_id(1)
    first = tl.load(bounds_ptr + place)
    last = tl.load(bounds_ptr + place + 1)
    entry = tl.load(entry_ptr + place, mask=last - first > chunk, other=0).to(tl.int64)
    if entry != 0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in range(first, last, chunk):
            row = (2 * (start // chunk) + (start == first)).to(tl.int64)
            acc += tl.load(parts_ptr + row * (size + extra) + at, mask=at < size + extra, other=0.0)
        tl.store(out_ptr + entry * size + at, acc.to(out_ptr.dtype.element_ty), mask=at < size)
        if extra_ptr is not None:
            rest = at - size
            tl.store(
                extra_ptr + entry * extra + rest, acc.to(extra_ptr.dtype.element_ty), mask=(rest >= 0) & (rest < extra)
            )
