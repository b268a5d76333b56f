# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""print_if and breakpoint_if compiled: in the binary without any variable, and in a pipelined loop."""
import re

import pytest
import triton.language as tl
from compile_util import TARGETS, code, compile_kernel
from triton.compiler.errors import CompilationError

import triton_dist
import triton_dist.language as dl


@triton_dist.jit
def looked_into(x, out, n, BLOCK: tl.constexpr, WHAT: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    if WHAT == "print":
        dl.print_if(dl.rank() == 1, "here ", a, n)
    elif WHAT == "print by text":
        dl.print_if("=3,>1", "here")
    elif WHAT == "stop":
        dl.breakpoint_if(tl.sum(a) > 100.0, n)
    elif WHAT == "wrong text":
        dl.print_if("three", "here")
    elif WHAT == "four axes":
        dl.print_if("=1,=1,=1,=1", "here")
    tl.store(out + i, a, mask=i < n)


@triton_dist.jit
def gemm(x, w, out, k, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for at in range(0, k, BLOCK):
        a = tl.load(x + i[:, None] * k + at + j[None, :])
        b = tl.load(w + (at + i[:, None]) * BLOCK + j[None, :])
        dl.breakpoint_if(at == 3 * BLOCK, at)
        acc = tl.dot(a, b, acc)
    tl.store(out + i[:, None] * BLOCK + j[None, :], acc)


SIGNATURE = dict(x="*fp32", out="*fp32", n="i32", BLOCK="constexpr", WHAT="constexpr")


def compiled(what: str, target: str):
    return compile_kernel(looked_into, SIGNATURE, dict(BLOCK=128, WHAT=what), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", ["print", "print by text", "stop"])
def test_it_is_compiled_without_a_variable(what, target):
    text, plain = code(compiled(what, target)), code(compiled("nothing", target))
    prints, stops = ("vprintf", "__assertfail") if target.startswith("sm") else ("s_sendmsg ", "s_trap")
    assert prints in text and (stops in text) == (what == "stop")
    assert prints not in plain and stops not in plain


def test_a_text_is_about_the_program(what="print by text"):
    ttir = compiled(what, "sm_90").asm["ttir"]
    assert {*re.findall(r"tt\.get_program_id ([xyz])", ttir)} == {"x", "y", "z"}
    assert re.search(r"arith\.cmpi eq, %\w+, %c3_i32", ttir) and re.search(r"arith\.cmpi sgt, %\w+, %c1_i32", ttir)
    assert "scf.if" in ttir or "cf.cond_br" in ttir


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_a_pipelined_loop_may_stop(target):
    kernel = compile_kernel(gemm, dict(x="*fp16", w="*fp16", out="*fp32", k="i32", BLOCK="constexpr"), dict(BLOCK=64), target,
                            num_stages=3 if target.startswith("sm") else 2)
    assert ("__assertfail" if target.startswith("sm") else "s_trap") in code(kernel)
    pipelines = target.startswith("sm") and not hasattr(tl, "atomic_store")         # Triton 3.9 leaves such a loop alone
    assert not pipelines or "cp.async" in code(kernel)


@pytest.mark.parametrize("what, said", [("wrong text", "expected rules for program_id"), ("four axes", "at most three axes")])
def test_a_text_that_is_no_rule_is_refused(what, said):
    with pytest.raises(CompilationError) as caught:
        compiled(what, "sm_90")
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert said in str(error)
