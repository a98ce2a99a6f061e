"""The Triton kernels of torch/gpu.py: core/rule.py in Triton's words.

`update` is the step. Where the host knows which one it is, it hands over that step's numbers and `update`
runs alone; where only the device knows (CUDA graphs, gradient scalers, parameters that joined late),
`prepare` runs before it and writes them into a table.
"""

import triton
import triton.language as tl

# What `prepare` hands to `update`, a row of float32 a tensor: the rule's Scalars (the floor inverted), then
# the factor of the gradient, the coupled decay, the rate, the decoupled decay, and whether to step at all.
ROW = tl.constexpr(16)
STATIC = tl.constexpr(6)  # a row of the table: addresses of p, m, b, step; number of elements; first chunk


@triton.jit(do_not_specialize=["n"])
def prepare(
    table, rows, found_inf, grad_scale, lr_tensor, n,
    lr: tl.float64, weight_decay: tl.float64, l2: tl.float64, sign: tl.float64,
    beta1: tl.float64, log_beta1: tl.float64, beta2: tl.float64, log_beta2: tl.float64, delta: tl.float64,
    keep: tl.float64, clip: tl.float64, standardize: tl.float64,
    FOUND_INF: tl.constexpr, GRAD_SCALE: tl.constexpr, LR_TENSOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Advance every step and write the numbers of that step: core.rule.scalars, in float64."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    live = 1.0
    if FOUND_INF:
        live = tl.where(tl.load(found_inf) == 0.0, 1.0, 0.0)
    if GRAD_SCALE:
        sign = sign / tl.load(grad_scale).to(tl.float64)
    if LR_TENSOR:
        lr = tl.load(lr_tensor).to(tl.float64)
    step = tl.load(table + i * STATIC + 3, mask=there, other=0).to(tl.pointer_type(tl.float32))
    now = tl.load(step, mask=there, other=0.0) + live
    tl.store(step, now, mask=there)
    t = tl.maximum(now, 1.0).to(tl.float64)

    c1 = 1.0 - tl.exp(t * log_beta1)
    c2 = 1.0 - tl.exp(t * log_beta2)
    c1_prev = 1.0 - tl.exp((t - 1.0) * log_beta1) + tl.where(t == 1.0, 2.0, 0.0)
    white = 1.0 / tl.sqrt(1.0 + (2.0 - c1_prev) * (1.0 - beta1) / (c1_prev * (1.0 + beta1)))
    k_g = tl.where(standardize != 0.0, white, (1.0 - beta1) / c1)

    row, zero = rows + i * ROW, t - t
    tl.store(row + 0, k_g.to(tl.float32), mask=there)
    tl.store(row + 1, (-k_g / c1_prev).to(tl.float32), mask=there)
    tl.store(row + 2, (zero + (1.0 - beta1)).to(tl.float32), mask=there)
    tl.store(row + 3, (zero + (1.0 - beta2)).to(tl.float32), mask=there)
    tl.store(row + 4, (zero + keep).to(tl.float32), mask=there)
    tl.store(row + 5, (1.0 / (delta * tl.sqrt(c2))).to(tl.float32), mask=there)
    tl.store(row + 6, (tl.sqrt(c2) / c1).to(tl.float32), mask=there)
    tl.store(row + 7, (zero + clip).to(tl.float32), mask=there)
    tl.store(row + 8, (zero + sign).to(tl.float32), mask=there)
    tl.store(row + 9, (zero + l2).to(tl.float32), mask=there)
    tl.store(row + 10, (zero + lr).to(tl.float32), mask=there)
    tl.store(row + 11, (zero + (1.0 - lr * weight_decay)).to(tl.float32), mask=there)
    tl.store(row + 12, (zero + live).to(tl.float32), mask=there)


@triton.jit
def _mix(x):
    """agdopt.torch.rounding.mix"""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _to_bfloat16(x, bits):
    up = ((x.to(tl.uint32, bitcast=True) + (bits & 0xFFFF)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < float("inf"), up, x).to(tl.bfloat16)


@triton.jit
def _load(address, offsets, size, FULL: tl.constexpr):
    if FULL:
        return tl.load(address + offsets).to(tl.float32)
    return tl.load(address + offsets, mask=offsets < size, other=0.0).to(tl.float32)


@triton.jit
def _store(address, offsets, size, x, FULL: tl.constexpr):
    x = x.to(address.dtype.element_ty)
    if FULL:
        tl.store(address + offsets, x)
    else:
        tl.store(address + offsets, x, mask=offsets < size)


@triton.jit
def _chunk(
    p_at, g_at, m_at, b_at, start, size, salt, t,
    k_g, k_m, w1, w2, keep, inverse_floor, scale, clip, gain, l2, lr, shrink,
    FULL: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """core.rule.direction on one chunk. FULL: no masks, aligned addresses: what wide loads take."""
    at = tl.arange(0, BLOCK)
    p, g = _load(p_at, at, size, FULL), _load(g_at, at, size, FULL)
    m, b = _load(m_at, at, size, FULL), _load(b_at, at, size, FULL)
    g = gain * g + l2 * p

    # s = k_g g + k_m m
    s = k_g * g + k_m * m
    # m = m + w1 (g - m)
    m = m + w1 * (g - m)
    # b = b + w2 (max(s^2, keep b) - b)
    s2, kept = s * s, keep * b
    past = tl.where(w2 < 1.0, b, 0.0)
    b = past + w2 * (tl.where(s2 < kept, kept, s2) - past)
    # d = scale m / max(sqrt(b), floor), within the clip; comparisons are written so that NaN stays NaN
    inverse = tl.rsqrt(b)
    d = scale * m * tl.where(inverse > inverse_floor, inverse_floor, inverse)
    d = tl.where(d < -clip, -clip, d)
    d = tl.where(d > clip, clip, d)
    p = p * shrink - lr * d

    index = (start + at).to(tl.uint32)
    count = t.to(tl.uint32, bitcast=True)
    if m_at.dtype.element_ty == tl.bfloat16:
        bits = _mix(index ^ _mix(salt ^ count))
        _store(m_at, at, size, _to_bfloat16(m, bits), FULL)
        _store(b_at, at, size, _to_bfloat16(b, bits >> 16), FULL)
    else:
        _store(m_at, at, size, m, FULL)
        _store(b_at, at, size, b, FULL)
    if ROUND:
        bits = _mix(index ^ _mix((salt ^ 0xFFFFFFFF) ^ count))
        _store(p_at, at, size, _to_bfloat16(p, bits), FULL)
    else:
        _store(p_at, at, size, p, FULL)


@triton.jit(do_not_specialize=["t"])
def update(
    table, grads, salts, owner, rows,
    t: tl.int32, k_g: tl.float32, k_m: tl.float32, w1: tl.float32, w2: tl.float32, keep: tl.float32,
    inverse_floor: tl.float32, scale: tl.float32, clip: tl.float32,
    gain: tl.float32, l2: tl.float32, lr: tl.float32, shrink: tl.float32,
    P: tl.constexpr, S: tl.constexpr, PREPARED: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The chunk of this program: `owner` says of which tensor, the table where that lies."""
    chunk = tl.program_id(0)
    i = tl.load(owner + chunk)
    entry = table + i * STATIC
    first = tl.load(entry + 5)
    step_at = tl.load(entry + 3).to(tl.pointer_type(tl.float32))
    live = True
    if PREPARED:
        row = rows + i * ROW
        t = tl.load(step_at).to(tl.int32)
        k_g, k_m, w1, w2 = tl.load(row + 0), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        keep, inverse_floor = tl.load(row + 4), tl.load(row + 5)
        scale, clip = tl.load(row + 6), tl.load(row + 7)
        gain, l2, lr, shrink = tl.load(row + 8), tl.load(row + 9), tl.load(row + 10), tl.load(row + 11)
        live = tl.load(row + 12) != 0.0  # an overflow that a gradient scaler has found is no step
    elif chunk == first:
        tl.store(step_at, t.to(tl.float32))
    if live:
        start = (chunk - first) * BLOCK
        size = tl.load(entry + 4) - start
        salt = tl.load(salts + i).to(tl.uint32, bitcast=True)
        p_at, m_at, b_at, g_at = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(grads + i)
        aligned = ((p_at | m_at | b_at | g_at) & 15) == 0
        if aligned & (size >= BLOCK):
            # The hint belongs to the operation that makes the pointer: made before the branch, the masked
            # path would read wide where nothing is aligned; made in a called function, it is lost.
            p_to = tl.multiple_of(p_at.to(tl.pointer_type(P)) + start, 16)
            g_to = tl.multiple_of(g_at.to(tl.pointer_type(P)) + start, 16)
            m_to = tl.multiple_of(m_at.to(tl.pointer_type(S)) + start, 16)
            b_to = tl.multiple_of(b_at.to(tl.pointer_type(S)) + start, 16)
            _chunk(
                p_to, g_to, m_to, b_to, start, size, salt, t,
                k_g, k_m, w1, w2, keep, inverse_floor, scale, clip, gain, l2, lr, shrink,
                True, ROUND, BLOCK,
            )  # fmt: skip
        else:
            p_to = p_at.to(tl.pointer_type(P)) + start
            g_to = g_at.to(tl.pointer_type(P)) + start
            m_to = m_at.to(tl.pointer_type(S)) + start
            b_to = b_at.to(tl.pointer_type(S)) + start
            _chunk(
                p_to, g_to, m_to, b_to, start, size, salt, t,
                k_g, k_m, w1, w2, keep, inverse_floor, scale, clip, gain, l2, lr, shrink,
                False, ROUND, BLOCK,
            )  # fmt: skip
