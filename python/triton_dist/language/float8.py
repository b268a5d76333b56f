# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rounding to float8_e4m3fn by the device's own instruction, where the target has one."""
from triton.language import core

from triton_dist.language._call import assembly
from triton_dist.language.abi import E4M3_WORD


@core.builtin
def has_e4m3_word(_semantic=None):
    """Whether the target of the kernel that is being traced rounds fp32 to float8_e4m3fn by an instruction."""
    known = "fp8e4nv" in getattr(_semantic.builder.options, "supported_fp8_dtypes", ())
    return core.constexpr(known and assembly(_semantic, E4M3_WORD) is not None)


@core.builtin
def e4m3_word_in_one_step(a, b, c, d, _semantic=None):
    """int32 of four fp32 as float8_e4m3fn: to nearest, ties to even, larger ones cut to 448. `a` is in the lowest byte."""
    text, constraints = assembly(_semantic, E4M3_WORD)
    return core.inline_asm_elementwise(text, constraints, [a, b, c, d], dtype=core.int32, is_pure=True, pack=1,
                                       _semantic=_semantic)
