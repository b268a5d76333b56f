# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Triton's own front end sees every kernel before the emulator runs it: once a specialisation, with the user's hooks alone."""
import pytest
import torch
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.experimental.gluon import language as gl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime.jit import gluon_jit


@triton_dist.jit
def changes_type(out, n, MORE: tl.constexpr):
    total = 0
    for i in range(n):
        total += MORE
    tl.store(out, total)


@gluon_jit
def gluon_changes_type(out, n, MORE: gl.constexpr):
    total = 0
    for i in range(n):
        total += MORE
    gl.store(out, total)


@pytest.mark.parametrize("kernel", [changes_type, gluon_changes_type])
def test_each_specialisation_is_seen_and_the_world_goes_on(kernel):
    def script():
        out = torch.zeros(1, dtype=torch.int32, device=triton_dist.device())
        for _ in range(2):                                       # a refusal is not remembered as a success
            with pytest.raises(CompilationError, match="Loop-carried variable total has initial type int32"):
                kernel[(1,)](out, 3, MORE=0.5)
        kernel[(1,)](out, 3, MORE=2)
        return int(out)
    assert run_ranks(script, 2) == [6, 6]


@triton_dist.jit
def waits(flags, SCOPE: tl.constexpr):
    dl.wait(flags, 1, SCOPE, "acquire", 0)


def test_the_cause_inside_a_library_function_is_told():
    def script():
        with pytest.raises(CompilationError, match="because: wait: scope must be one of 'gpu', 'sys', got 'cta'"):
            waits[(1,)](torch.zeros(1, dtype=torch.int32), SCOPE="cta")
    run_ranks(script, 1)


def test_it_is_traced_once_and_hooks_run_once():
    from triton import knobs
    seen, hooks = [], []

    @triton_dist.jit
    def kernel(out, VALUE: tl.constexpr):
        tl.store(out, VALUE)

    kernel.add_pre_run_hook(lambda *args, **kwargs: hooks.append(kwargs["VALUE"]))
    before, knobs.runtime.jit_post_compile_hook = knobs.runtime.jit_post_compile_hook, lambda **kwargs: seen.append(1)
    try:
        def script():
            out = torch.zeros(1, dtype=torch.int32)
            for value in (3, 4, 3, 4):
                kernel[(1,)](out, VALUE=value)
            return int(out)
        assert run_ranks(script, 2) == [4, 4]
    finally:
        knobs.runtime.jit_post_compile_hook = before
    assert len(seen) == 2 and sorted(hooks) == [3] * 4 + [4] * 4
