# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Triton 3.6's front end by one visit of each loop gives Triton's IR, and refuses what Triton refuses."""
import amd_kernels
import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget

import triton_dist
from triton_dist.backends.emulator import front_end_36, run_ranks
from triton_dist.backends.emulator.driver import NAME, EmulatorCompiler
from triton_dist.backends.emulator.front_end_36 import NoLocations, OneVisit
from triton_dist.compat.compiler import ASTSource, code_generator

pytestmark = pytest.mark.skipif(not front_end_36.APPLIES, reason="for Triton 3.6")


def seen_by(generator, source, monkeypatch):
    """The module that a code generator makes of a source, as the emulator has it made."""
    target = GPUTarget(NAME, 90, 32)
    compiler, context = EmulatorCompiler(target), ir.context()
    options = compiler.parse_options({})
    ir.load_dialects(context)
    compiler.load_dialects(context)
    with monkeypatch.context() as patch:
        patch.setattr(code_generator, "CodeGenerator", generator)
        return source.make_ir(target, options, compiler.get_codegen_implementation(options), compiler.get_module_map(), context)


def simplified(module) -> str:
    """Its text without values that loops carry unchanged, and without what nothing uses."""
    manager = ir.pass_manager(module.context)
    for add in (passes.common.add_canonicalizer, passes.common.add_cse, passes.common.add_canonicalizer):
        add(manager)
    manager.run(module, "simplify")
    return str(module)


class Asked(Exception):
    """Carries what Triton was to compile."""


def source_of(name, monkeypatch):
    def compile(source, **options):
        raise Asked(source)
    with monkeypatch.context() as patch:
        patch.setattr(triton, "compile", compile)
        with pytest.raises(Asked) as asked:
            amd_kernels.KERNELS[name]("gfx942")
    return asked.value.args[0]


DEEP = ["ep_dispatch self-flagged", "ep over nodes, combine", "gemm_rs"]        # loops in loops, with waits


@pytest.mark.every("name")
@pytest.mark.parametrize("name", [name if name in DEEP else pytest.param(name, marks=pytest.mark.full)
                                  for name in amd_kernels.KERNELS])
def test_kernels_of_the_ops_have_tritons_ir(name, monkeypatch):
    source = source_of(name, monkeypatch)
    assert simplified(seen_by(OneVisit, source, monkeypatch)) == simplified(seen_by(NoLocations, source, monkeypatch))


@triton_dist.jit
def type_changes(out, n, x: tl.constexpr):
    total = 0
    for i in range(n):
        total += 0.5
    tl.store(out, total)


@triton_dist.jit
def sign_changes(out, n, x: tl.constexpr):
    total = n
    while total < 9:
        total = (total + 1).to(tl.uint32)
    tl.store(out, total)


@triton_dist.jit
def type_changes_further_in(out, n, x: tl.constexpr):
    total = 0
    for i in range(n):
        if i > 2:
            for j in range(n):
                total = tl.cast(j, tl.int64)
    tl.store(out, total)


@triton_dist.jit
def constant_changes(out, n, x: tl.constexpr):
    for i in range(n):
        x = i
    tl.store(out, x)


@triton_dist.jit
def counts_by_a_value(out, n, x: tl.constexpr):
    j = n
    for i in range(n):
        for j in tl.static_range(2):
            tl.store(out + j, i)
    tl.store(out, j)


@triton_dist.jit
def right(out, n, x: tl.constexpr):
    """All of the above in ways that are allowed."""
    total, other, j = 0, n, n
    for i in range(n):
        if x == 1:
            total = 0.5
        for j in range(n):
            total += j
            while other < 9:
                other = (other + 1).to(tl.int32)
        for k in tl.static_range(2):
            other += k
    tl.store(out, total + other + j)


REFUSED = [type_changes, sign_changes, type_changes_further_in, constant_changes, counts_by_a_value]


@pytest.mark.every("kernel")
@pytest.mark.parametrize("kernel", [*REFUSED, right])
def test_what_a_loop_may_not_carry_is_refused(kernel, monkeypatch):
    source = ASTSource(kernel, dict(out="*i32", n="i32", x="constexpr"), {(2,): 4})
    if kernel is right:
        assert simplified(seen_by(OneVisit, source, monkeypatch)) == simplified(seen_by(NoLocations, source, monkeypatch))
        return
    for generator in (OneVisit, front_end_36.CodeGenerator):
        with pytest.raises(Exception, match="(?i)loop|constexpr"):
            seen_by(generator, source, monkeypatch)


def test_launches_take_it_and_errors_are_tritons(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))       # what an earlier run has left there is not compiled again
    visits = []

    class Counted(OneVisit):
        def visit_For(self, node):
            visits.append(node.lineno)
            super().visit_For(node)

    monkeypatch.setattr(front_end_36, "OneVisit", Counted)

    @triton_dist.jit
    def kernel(out, n, MORE: tl.constexpr):
        total = 0
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    total += MORE
        tl.store(out, total)

    def script():
        out = torch.zeros(1, dtype=torch.int32)
        kernel[(1,)](out, 3, MORE=2)
        assert int(out) == 54
        with pytest.raises(triton.CompilationError, match="Loop-carried variable total has initial type int32"):
            kernel[(1,)](out, 3, MORE=0.5)
    run_ranks(script, 1)
    assert len(visits) == 6 and code_generator.CodeGenerator is front_end_36.CodeGenerator
