# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Small kernels, one for each thing that a launch ahead of time has to get right."""

import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.aot import aot_compile_spaces


@aot_compile_spaces(
    {
        "add_fp32": {
            "signature": "*fp32:16, *fp32:16, *fp32:16, i32:16|1|, %BLOCK",
            "grid": ["cdiv(n, %BLOCK)", "1", "1"],
            "triton_algo_infos": [dict(BLOCK=1024, num_warps=4), dict(BLOCK=256, num_warps=2, num_stages=1)],
        },
        "add_fp16": {
            "signature": "*fp16, *fp16, *fp16, i32, %BLOCK",
            "grid": ["(n + %BLOCK - 1) / %BLOCK", "1", "1"],
            "triton_algo_infos": [dict(BLOCK=1024, num_warps=4)],
        },
    },
    name="add",
)
@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@aot_compile_spaces(
    {
        "scalars": {
            "signature": "*fp32:16, i1, i8, u8, i16, i32, i64, u64, fp16, bf16, fp32, fp64, %SIGN, %FLAG",
            "triton_algo_infos": [dict(SIGN=-1.5, FLAG=True), dict(SIGN=1.5, FLAG=False)],
        }
    }
)
@triton.jit
def scalars(out, a, b, c, d, e, f, g, h, i, j, k, SIGN: tl.constexpr, FLAG: tl.constexpr):
    total = a.to(tl.float32) + b.to(tl.float32) + c.to(tl.float32) + d.to(tl.float32) + e.to(tl.float32) + f.to(tl.float32)
    total += g.to(tl.float32) + h.to(tl.float32) + i.to(tl.float32) + j + k.to(tl.float32)
    tl.store(out, total * SIGN if FLAG else total)


@aot_compile_spaces(
    {
        "copy_box": {
            "signature": "tensordesc<bf16[%M,%N]>, tensordesc<bf16[%M,%N]>, i32, %M, %N",
            "triton_algo_infos": [dict(M=64, N=64, num_warps=4)],
        }
    }
)
@triton.jit
def copy_box(x, out, column, M: tl.constexpr, N: tl.constexpr):
    out.store([tl.program_id(0) * M, column], x.load([tl.program_id(0) * M, column]))


@aot_compile_spaces(
    {
        "copy_by_made_descriptor": {
            "signature": "*fp16:16, *fp16:16, i32:16, i32:16, %M, %N",
            "triton_algo_infos": [dict(M=32, N=64, num_warps=4)],
        }
    }
)
@triton.jit
def copy_by_made_descriptor(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    target.store([tl.program_id(0) * M, 0], source.load([tl.program_id(0) * M, 0]))


@aot_compile_spaces(
    {
        "fill": {
            "signature": "*i32:16, i32, %BLOCK",
            "grid": ["min(sms, cdiv(n, %BLOCK))", "1", "1"],
            "triton_algo_infos": [dict(BLOCK=128, num_warps=4, launch_cooperative_grid=True)],
        },
        "fill_in_clusters": {
            "signature": "*i32:16, i32, %BLOCK",
            "targets": ["cuda:90", "cuda:100"],
            "triton_algo_infos": [dict(BLOCK=128, num_warps=4, num_ctas=2)],
        },
    }
)
@triton.jit
def fill(out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < n)


@aot_compile_spaces(
    {"after_the_last": {"signature": "*i32:16, %BLOCK", "triton_algo_infos": [dict(BLOCK=128, num_warps=4)]}}
)
@triton_dist.jit
def after_the_last(out, BLOCK: tl.constexpr):
    dl.gdc_wait()
    tl.store(out + tl.arange(0, BLOCK), 1)


@aot_compile_spaces({"who_am_i": {"signature": "*i32:16, *i32", "triton_algo_infos": [dict(num_warps=1)]}})
@triton_dist.jit
def who_am_i(out, word):
    tl.store(out, dl.rank())
    tl.store(dl.symm_at(word, (dl.rank() + 1) % dl.num_ranks()), 1)
