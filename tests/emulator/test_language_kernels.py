# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Whole kernels of the kind that this field writes, against torch."""
import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, launch  # noqa: F401
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_dist.runtime.errors import DeviceFault, InvalidArgument

TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), dtype=dtype)


def check(out, reference, dtype):
    error = ((out.double() - reference.double()).norm() / reference.double().norm()).item()
    assert error < TOLERANCE[dtype], error


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_vector_add(dtype):
    x, y = (torch.randn(1000) * 50).to(dtype), (torch.randn(1000) * 50).to(dtype)
    out = torch.zeros_like(x)
    launch(_add, lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), ), x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)


@triton.jit
def _matmul(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            GROUP: tl.constexpr, WRAP: tl.constexpr):
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    pid = tl.program_id(0)
    pm, pn = tl.swizzle2d(pid // num_n, pid % num_n, num_m, num_n, GROUP)
    rm, rn, rk = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if WRAP:                       # the tutorials' way: wrapped rows, so that no row mask is needed
        am, bn = rm % M, rn % N
        a_ptrs = a + (am[:, None] * sam + rk[None, :] * sak)
        b_ptrs = b + (rk[:, None] * sbk + bn[None, :] * sbn)
        for k in range(0, tl.cdiv(K, BK)):
            x = tl.load(a_ptrs, mask=rk[None, :] < K - k * BK, other=0.0)
            y = tl.load(b_ptrs, mask=rk[:, None] < K - k * BK, other=0.0)
            acc = tl.dot(x, y, acc)
            a_ptrs += BK * sak
            b_ptrs += BK * sbk
    else:
        for k in tl.range(0, K, BK, num_stages=3):
            ks = k + rk
            x = tl.load(a + rm[:, None] * sam + ks[None, :] * sak, (rm[:, None] < M) & (ks[None, :] < K), 0.0)
            y = tl.load(b + ks[:, None] * sbk + rn[None, :] * sbn, (ks[:, None] < K) & (rn[None, :] < N), 0.0)
            acc += tl.dot(x, y, input_precision="ieee")
    out = c + rm[:, None] * scm + rn[None, :] * scn
    tl.store(out, acc.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_ragged_matmul(dtype, wrapped, transposed):
    M, N, K = 100, 70, 90
    a = torch.randn(M, K).to(dtype)
    b = torch.randn(N, K).to(dtype).t() if transposed else torch.randn(K, N).to(dtype)
    c = poisoned(M, N, dtype=dtype)
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32), )
    launch(_matmul, grid, a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=32, GROUP=2,
           WRAP=wrapped, num_warps=8)
    check(c, a.double() @ b.double(), dtype)


@triton.jit
def _int8_dot(a, b, c, batched, N: tl.constexpr):
    r = tl.arange(0, N)
    x = tl.load(a + r[:, None] * N + r[None, :])
    y = tl.load(b + r[:, None] * N + r[None, :])
    tl.store(c + r[:, None] * N + r[None, :], tl.dot(x, y, out_dtype=tl.int32))
    z = tl.reshape(x, (2, N // 2, N)).to(tl.float16)
    w = tl.permute(z, (0, 2, 1))
    p = tl.dot(z, w, out_dtype=tl.float16)
    tl.store(batched + tl.arange(0, N * N // 2), p.reshape(N * N // 2).to(tl.float32))


def test_int8_and_batched_dot():
    a, b = (torch.randint(-128, 127, (32, 32), dtype=torch.int8) for _ in range(2))
    a //= 32
    c, batched = torch.zeros(32, 32, dtype=torch.int32), poisoned(2, 16, 16)
    launch(_int8_dot, 1, a, b, c, batched, N=32)
    assert torch.equal(c, a.int() @ b.int())
    z = a.view(2, 16, 32).float()
    assert torch.equal(batched, (z @ z.transpose(1, 2)).half().float())


@triton.jit
def _mismatched_dot(a, N: tl.constexpr):
    r = tl.arange(0, N)
    x = tl.load(a + r[:, None] * N + r[None, :])
    tl.dot(x, x.to(tl.float32))


def test_dot_of_different_types_is_refused():
    with pytest.raises(InvalidArgument, match="dot of fp16 and fp32"):
        launch(_mismatched_dot, 1, torch.randn(16, 16).half(), N=16)


@triton.jit
def _softmax(x, out, stride, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + k, mask=k < n, other=-float("inf")).to(tl.float32)
    v = v - tl.max(v, axis=0)
    e = tl.exp(v)
    tl.store(out + row * stride + k, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=k < n)


@triton.jit
def _layernorm(x, w, b, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    mean = 0.0
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        k = off + tl.arange(0, BLOCK)
        total += tl.load(x + row * n + k, mask=k < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        k = off + tl.arange(0, BLOCK)
        d = tl.load(x + row * n + k, mask=k < n, other=0.0).to(tl.float32)
        d = tl.where(k < n, d - mean, 0.0)
        total += d * d
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    for off in range(0, n, BLOCK):
        k = off + tl.arange(0, BLOCK)
        d = tl.load(x + row * n + k, mask=k < n, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = (d - mean) * rstd * tl.load(w + k, mask=k < n) + tl.load(b + k, mask=k < n)
        tl.store(out + row * n + k, y, mask=k < n)


def test_softmax_and_layernorm():
    x = torch.randn(9, 100).half()
    out = poisoned(9, 100, dtype=torch.float16)
    launch(_softmax, 9, x, out, x.stride(0), 100, BLOCK=128)
    check(out, x.float().softmax(1), torch.float16)
    w, b = torch.randn(100), torch.randn(100)
    out = poisoned(9, 100)
    launch(_layernorm, 9, x.float(), w, b, out, 100, 1e-5, BLOCK=32)
    check(out, torch.nn.functional.layer_norm(x.float(), (100, ), w, b), torch.float32)


@triton.jit
def _attention_inner(acc, l_i, m_i, q, k_desc, v_desc, start, rows, CAUSAL: tl.constexpr, BN: tl.constexpr):
    k = k_desc.load([start, 0])
    qk = tl.dot(q, k.T)
    if CAUSAL:
        qk += tl.where(rows[:, None] >= (start + tl.arange(0, BN))[None, :], 0, -1.0e6)
    m_new = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.math.exp2(qk - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    acc = acc * alpha[:, None]
    v = v_desc.load([start, 0])
    return tl.dot(p.to(v.dtype), v, acc), l_i * alpha + tl.sum(p, 1), m_new


@triton.jit
def _attention(q_ptr, k_ptr, v_ptr, out_desc, scale, n, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
               D: tl.constexpr):
    k_desc = tl.make_tensor_descriptor(k_ptr, shape=[n, D], strides=[D, 1], block_shape=[BN, D])
    v_desc = tl.make_tensor_descriptor(v_ptr, shape=[n, D], strides=[D, 1], block_shape=[BN, D])
    start_m = tl.program_id(0)
    rows = start_m * BM + tl.arange(0, BM)
    q = tl.load(tl.make_block_ptr(q_ptr, (n, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0)), boundary_check=(0, ),
                padding_option="zero")
    q = (q * (scale * 1.44269504)).to(q_ptr.dtype.element_ty)
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32) + 1.0
    l_i -= 1.0
    acc = tl.zeros([BM, D], dtype=tl.float32)
    hi = (start_m + 1) * BM if CAUSAL else n
    for start in tl.range(0, hi, BN, warp_specialize=False):
        start = tl.multiple_of(start, BN)
        acc, l_i, m_i = _attention_inner(acc, l_i, m_i, q, k_desc, v_desc, start, rows, CAUSAL, BN)
    out_desc.store([start_m * BM, 0], (acc / l_i[:, None]).to(out_desc.dtype))


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention(causal):
    n, d = 128, 32
    q, k, v = (torch.randn(n, d).half() for _ in range(3))
    out = poisoned(n, d, dtype=torch.float16)
    desc = TensorDescriptor.from_tensor(out, [32, d])
    launch(_attention, n // 32, q, k, v, desc, d**-0.5, n, causal, BM=32, BN=32, D=d)
    batch = [x.float()[None] for x in (q, k, v)]
    reference = torch.nn.functional.scaled_dot_product_attention(*batch, is_causal=causal)[0]
    check(out, reference, torch.bfloat16)


@triton.jit
def _histogram(x, bins, tickets, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + k, mask=k < n, other=0)
    tl.atomic_add(bins + v, 1, mask=k < n, sem="relaxed")
    ticket = tl.atomic_add(tickets, 1)
    tl.atomic_max(tickets + 1, ticket)
    tl.atomic_min(tickets + 2, -ticket, sem="release", scope="sys")
    tl.atomic_or(tickets + 3, 1 << ticket)
    tl.atomic_xor(tickets + 4, 3)
    tl.atomic_and(tickets + 5, ~(1 << ticket))


def test_atomics():
    x = torch.randint(0, 16, (1000, ), dtype=torch.int32)
    bins, tickets = torch.zeros(16, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    tickets[5] = -1
    launch(_histogram, 8, x, bins, tickets, 1000, BLOCK=128)
    assert torch.equal(bins, torch.bincount(x, minlength=16).int())
    assert tickets.tolist() == [8, 7, -7, 255, 0, ~255]


@triton.jit
def _float_atomics(x, out, old, N: tl.constexpr):
    k = tl.arange(0, N)
    v = tl.load(x + k)
    tl.store(old + k, tl.atomic_add(out + k % 2, v))
    tl.atomic_max(out + 2 + k * 0, v)
    tl.atomic_xchg(out + 3, 2.5)
    tl.atomic_cas(old + N + k * 0, tl.zeros([N], tl.float32), v)


def test_float_atomics_with_colliding_addresses():
    x = torch.arange(1.0, 9.0)
    out, old = torch.zeros(4), torch.zeros(9)
    launch(_float_atomics, 1, x, out, old, N=8)
    assert out.tolist() == [16.0, 20.0, 8.0, 2.5]
    assert old.tolist() == [0, 0, 1, 2, 4, 6, 9, 12, 1.0]


@triton.jit
def _lock(lock, count, n):
    for _ in range(n):
        while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
            pass
        tl.store(count, tl.load(count) + 1)
        tl.atomic_xchg(lock, 0, sem="release")


@triton.jit
def _ring(flags, W):
    """Program i spins until i - 1 has signalled; each way of polling."""
    i = tl.program_id(0)
    if i > 0:
        if i % 3 == 0:
            while tl.load(flags + i - 1, volatile=True) != i:
                pass
        elif i % 3 == 1:
            while tl.atomic_add(flags + i - 1, 0, sem="acquire", scope="sys") != i:
                pass
        else:
            while tl.atomic_cas(flags + i - 1, i, i) != i:
                pass
    tl.store(flags + i, i + 1)


def test_spin_loops_end_and_locks_exclude():
    lock, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch(_lock, 6, lock, count, 5)
    assert count.item() == 30
    flags = torch.zeros(8, dtype=torch.int32)
    launch(_ring, 8, flags, 8)
    assert flags.tolist() == list(range(1, 9))


@triton.jit
def _descriptors(a, b, out, sums, M, N, BM: tl.constexpr, BN: tl.constexpr):
    for m in range(0, M, BM):
        for n in range(0, N, BN):
            x = a.load([m, n]) + tl.load_tensor_descriptor(b, [m, n])
            out.store([m, n], x)
            sums.atomic_add([0, n], tl.sum(x, 0)[None, :])
    edge = a.load([-2, N - 4])
    tl.static_assert(edge.dtype == a.dtype)
    out.store([M - 1, -BN + 4], edge + 1)


def test_host_descriptors_clip_and_pad():
    a, b = torch.randn(50, 40), torch.randn(50, 40)
    out, sums = poisoned(50, 40), torch.zeros(1, 40)
    d = lambda t, m=16: TensorDescriptor.from_tensor(t, [m, 16])      # noqa: E731
    launch(_descriptors, 1, d(a), d(b), d(out), d(sums, 1), 50, 40, BM=16, BN=16)
    want = a + b
    assert torch.equal(out[:49], want[:49]) and torch.equal(out[49, 4:], want[49, 4:])
    assert torch.equal(out[49, :4], torch.ones(4))          # rows -2 and columns past the end read as zero
    torch.testing.assert_close(sums[0], want.sum(0))


@triton.jit
def _block_pointers(a, out, M, N, BM: tl.constexpr):
    p = tl.make_block_ptr(a, (M, N), (N, 1), (0, 0), (BM, BM), (1, 0))
    total = tl.zeros((BM, BM), tl.float32)
    for _ in range(0, tl.cdiv(N, BM)):
        total += tl.load(p, boundary_check=(0, 1), padding_option="zero")
        p = tl.advance(p, (0, BM))
    q = tl.make_block_ptr(out, (M, BM), (BM, 1), (0, 0), (BM, BM), (1, 0))
    tl.store(q, total, boundary_check=(0, ))


@pytest.mark.skipif(not hasattr(tl, "advance"), reason="this Triton has no tl.advance")
def test_block_pointers():
    a, out = torch.randn(13, 40), poisoned(13, 16)
    launch(_block_pointers, 1, a, out, 13, 40, BM=16)
    torch.testing.assert_close(out, torch.nn.functional.pad(a, (0, 8)).view(13, 3, 16).sum(1))


@triton.jit
def _gather_scatter(a, out, rows):
    r = tl.load(rows + tl.arange(0, 8))
    x = a.gather(r, 16)
    out.scatter(x * 2, r, 0)


def test_descriptor_gather_and_scatter():
    a, out = torch.randn(20, 32), torch.zeros(20, 16)
    rows = torch.randperm(20)[:8].int()
    launch(_gather_scatter, 1, TensorDescriptor.from_tensor(a, [1, 16]), TensorDescriptor.from_tensor(out, [1, 16]),
           rows)
    want = torch.zeros(20, 16)
    want[rows.long()] = a[rows.long(), 16:] * 2
    assert torch.equal(out, want)


@triton.jit
def _pointer_table(table, out, N: tl.constexpr):
    for i in tl.static_range(2):
        base = tl.load(table + i).to(tl.pointer_type(tl.float32))
        base = tl.multiple_of(base, 16)
        tl.store(out + i * N + tl.arange(0, N), tl.load(base + tl.arange(0, N)))
    both = tl.load(table + tl.arange(0, 2)).to(tl.pointer_type(tl.float32))
    tl.store(out + 2 * N + tl.arange(0, 2), tl.load(both))


def test_pointers_from_a_table(engine):      # noqa: F811
    from triton_dist.backends.emulator.memory import memory
    x, y = torch.randn(8), torch.randn(8)
    for t in (x, y):
        memory.active().register(t, "row")
    out = poisoned(18)
    launch(_pointer_table, 1, torch.tensor([x.data_ptr(), y.data_ptr()]), out, N=8)
    assert torch.equal(out, torch.cat([x, y, x[:1], y[:1]]))


@triton.jit
def _scalar_accesses(h, b, i1, out):
    x = tl.load(h)
    tl.store(h + 1, x * 3.0)
    tl.store(b, tl.load(b) + 1)
    tl.store(i1 + 1, tl.load(i1))
    tl.store(out, tl.load(out + 5, mask=False, other=7))
    tl.store(out + 1, 9, mask=x > 100.0)


def test_scalar_accesses_of_every_kind():
    h, b = torch.tensor([1.5, 0.0]).half(), torch.tensor([2.0]).bfloat16()
    i1, out = torch.tensor([True, False]), torch.zeros(2, dtype=torch.int64)
    launch(_scalar_accesses, 1, h, b, i1, out)
    assert h.tolist() == [1.5, 4.5] and b.item() == 3.0 and i1.tolist() == [True, True] and out.tolist() == [7, 0]


@triton.jit
def _misuse(x, KIND: tl.constexpr):
    if KIND == 0:
        tl.store(x, tl.arange(0, 4))
    if KIND == 1:
        tl.load(x + tl.arange(0, 4) * 4096)
    if KIND == 2:
        tl.atomic_add(x.to(tl.pointer_type(tl.int8)), 1)
    if KIND == 3:
        tl.make_tensor_descriptor(x + 1, [4, 4], [4, 1], [4, 4])
    if KIND == 4:
        tl.atomic_add(x, 1, sem="seq_cst")


@pytest.mark.parametrize("kind, error, text", [
    (0, InvalidArgument, "scalar pointer"), (1, DeviceFault, r"past the end of x \(rank 0, .*_misuse"),
    (2, InvalidArgument, "atomic_add of int8"), (3, DeviceFault, "aligned to 16"), (4, InvalidArgument, "seq_cst")])
def test_misuse_is_an_error(kind, error, text):
    with pytest.raises(error, match=text):
        launch(_misuse, 1, torch.zeros(64, dtype=torch.int32), KIND=kind)
