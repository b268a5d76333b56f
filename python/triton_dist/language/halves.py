# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rounding to the two 16-bit elements of a word by the device's own instruction, where the target has one."""
from triton.language import core

from triton_dist.compat.triton import unwrap_constexpr
from triton_dist.language._call import assembly
from triton_dist.language.abi import BF16_WORD, FP16_WORD

_WORDS = {"bf16": BF16_WORD, "fp16": FP16_WORD}


def _stated(dtype, semantic):
    symbol = _WORDS.get(unwrap_constexpr(dtype).name)
    return None if symbol is None else assembly(semantic, symbol)


@core.builtin
def has_word_of(dtype, _semantic=None):
    """Whether the target of the kernel that is being traced rounds two fp32 to a word of `dtype` by one instruction."""
    return core.constexpr(_stated(dtype, _semantic) is not None)


@core.builtin
def word_in_one_step(low, high, dtype, _semantic=None):
    """int32 of two fp32 as elements of `dtype`, to nearest, ties to even. `low` is in the lower half."""
    text, constraints = _stated(dtype, _semantic)
    return core.inline_asm_elementwise(text, constraints, [low, high], dtype=core.int32, is_pure=True, pack=1,
                                       _semantic=_semantic)
