# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device runtime links into kernels of every vendor and leaves nothing behind."""
import inspect
import re

import amd_isa
import kernels
import pytest
from compile_util import CUDA, TARGETS, code, compile_kernel, dynamic_symbols, instructions, position, vendor

from triton_dist.backends.gpu.device_runtime import render
from triton_dist.backends.gpu.wait_sites import sites
from triton_dist.language._call import LIBRARY
from triton_dist.language.abi import ROWS

SIGNATURE = dict(flags32="*i32", flags64="*i64", packets="*i64", out="*i32", n="i32", value="i32", BLOCK="constexpr")
WAIT = dict(x="*fp16", flag="*i32", out="*fp16", n="i32", SCOPE="constexpr", SEMANTIC="constexpr", CMP="constexpr",
            BLOCK="constexpr")


def wait_kernel(compiled, target, scope="sys", semantic="acquire", cmp="ge", flag="*i32", **options):
    return compiled(kernels.load_after_wait, dict(WAIT, flag=flag),
                    dict(SCOPE=scope, SEMANTIC=semantic, CMP=cmp, BLOCK=1024), target, **options)


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_row_is_linked_and_inlined(compiled, target, bounded):
    called = set()
    for fn in (kernels.every_row, kernels.self_flagged_rows):
        kernel = compiled(fn, SIGNATURE, dict(BLOCK=256), target, bounded=bounded)
        called |= set(re.findall(r'symbol = "(tdist_\w+)"', kernel.asm["ttir"]))
        left = [line for line in instructions(kernel) if re.search(r"tdist_(?!ctx\b)", line)]
        assert not left, f"calls left: {left}"
        assert ".extern .func" not in code(kernel)
        if target not in CUDA:
            symbols = dynamic_symbols(kernel.asm["hsaco"])
            assert fn is not kernels.every_row or symbols["tdist_ctx"], "the context is not exported, so the host cannot fill it"
            assert [name for name, defined in symbols.items() if name and not defined] == []
    assert called == {row.symbol for row in ROWS.values()
                      if row.library == LIBRARY and (target not in CUDA or not row.optional)}


@pytest.mark.parametrize("target", TARGETS)
def test_bounded_waits_cost_nothing_when_off(compiled, target):
    clock, trap = (r"globaltimer", r"\btrap\b") if target in CUDA else (r"s_memrealtime", r"s_trap")
    off = "\n".join(instructions(wait_kernel(compiled, target)))
    assert not re.search(f"{clock}|{trap}|tdist_ctx", off)
    on = instructions(wait_kernel(compiled, target, bounded=True))
    position(on, clock)
    position(on, trap)
    position(on, "tdist_ctx")


@pytest.mark.parametrize("cmp", ["eq", "ge"])
@pytest.mark.parametrize("flag", ["*i32", "*u32", "*i64", "*u64"])
def test_wait_polls_whole_words_and_ge_is_a_signed_difference(compiled, flag, cmp):
    lines = instructions(wait_kernel(compiled, "sm_90", cmp=cmp, flag=flag))
    bits = flag[2:]
    spin = position(lines, rf"ld\.relaxed\.sys\.global\.b{bits}")
    test = position(lines, r"setp\.", spin)
    if cmp == "eq":
        assert re.search(rf"setp\.(ne|eq)\.b?s?{bits}", lines[test]), lines[test]
    else:
        assert re.search(rf"setp\.(lt|gt|ge|le)\.s{bits}", lines[test]), lines[test]
        position(lines[spin:test], rf"(add|sub)\.s{bits}")


@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize("target", TARGETS)
def test_acquire_of_the_right_scope_comes_before_the_load(compiled, target, scope):
    lines = instructions(wait_kernel(compiled, target, scope))
    if target in CUDA:
        spin = position(lines, rf"ld\.relaxed\.{scope}\.global\.b32")
        fence = position(lines, rf"fence\.(acquire|acq_rel)\.{scope}\b", spin)
        load = position(lines, r"ld\.global", fence)
        assert "ld.global.v4" in lines[load]
        position(lines[fence:load], r"bar\.warp\.sync")
        assert not [line for line in lines[:fence] if line.startswith("ld.global")]
        assert not [line for line in lines if line.startswith("bar.sync")]
    else:
        spin = position(lines, amd_isa.poll(target, scope))
        fence = amd_isa.acquire(lines, target, scope, spin)
        position(lines, r"buffer_load_dwordx|global_load_dwordx", fence)
        assert not [line for line in lines[:spin] if re.match(r"(buffer|global)_load", line)]


@pytest.mark.parametrize("target", TARGETS)
def test_relaxed_wait_has_no_fence(compiled, target):
    text = "\n".join(instructions(wait_kernel(compiled, target, semantic="relaxed")))
    assert not re.search(r"fence|buffer_inv", text)


@pytest.mark.parametrize("target", CUDA)
def test_packets_move_as_single_words(compiled, target):
    lines = instructions(compiled(kernels.every_row, SIGNATURE, dict(BLOCK=256), target))
    position(lines, r"st\.relaxed\.sys\.global\.b64")
    position(lines, r"ld\.relaxed\.sys\.global\.b64")


@pytest.mark.parametrize("target", TARGETS)
def test_unset_the_code_is_that_of_a_runtime_without_the_feature(target, tmp_path):
    """All functions that only bounded waits use are cut out of the device runtime: the code stays the same to the letter."""
    name = vendor(target)
    text = render(name)
    for function in ("expired", "give_up", "site", "elect", "clock_ns", "program_[xyz]"):
        text, count = re.subn(rf"define internal \S+ @tdist_{function}\(.*?\n\}}\n", "", text, flags=re.S)
        assert count == (3 if function == "program_[xyz]" else 1), function
    assert not re.search("clock|trap\\(\\)$|linger|record\\.", re.sub("declare.*|;.*", "", text), re.M)
    without = tmp_path / "without.ll"
    without.write_text(text)
    signature, constexprs = WAIT, dict(SCOPE="sys", SEMANTIC="acquire", CMP="ge", BLOCK=1024)
    unset = compile_kernel(kernels.load_after_wait, signature, constexprs, target)
    absent = compile_kernel(kernels.load_after_wait, signature, constexprs, target, runtime=False,
                            extern_libs={"tdist": str(without)})
    assert code(unset) == code(absent)
    assert code(unset) != code(compile_kernel(kernels.load_after_wait, signature, constexprs, target, bounded=True))


@pytest.mark.parametrize("target", TARGETS)
def test_every_bounded_wait_knows_its_line(target):
    """Two waits in one kernel, one inside a helper: the report has the author's lines, not the library's."""
    kernel = compile_kernel(kernels.waits_in_two_places, dict(flag="*i32", out="*i32"), {}, target, bounded=True)
    lines, start = inspect.getsourcelines(kernels.waits_in_two_places.fn)
    helper, helper_start = inspect.getsourcelines(kernels.waits_elsewhere.fn)
    expected = {f"kernels.py:{first + i}" for text, first in ((lines, start), (helper, helper_start))
                for i, line in enumerate(text) if "dl.wait" in line or "barrier_all" in line}
    assert len(expected) == 3 and set(sites(code(kernel)).values()) == expected
