# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What NVIDIA's device runtime has beside device.ll."""
from triton_dist.backends.gpu.device_runtime import Target
from triton_dist.backends.nvidia import nvshmem_functions
from triton_dist.language.abi import BF16_WORD, E4M3_WORD, FP16_WORD, TAKE, TRY_TAKE
from triton_dist.language._linked import Statement

# $0 to $3: the words; $4: address; $5: whether this element is taken. After a poll, q: words of this element are missing;
# r: words of some element of the warp are.
# All lanes of a warp poll until the last one's words have come. If they left the loop one by one, they would run what follows
# apart, up to where the assembler makes them meet.
def _take(registers: str, begin: str, again: str) -> str:
    return f"""{{
        .reg .pred p, q, r;
        .reg .b32 t, u;
        {registers}
        mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
        {begin}
        setp.ne.b32 p, $5, 0;
        POLL:
        @p ld.relaxed.sys.global.v4.b32 {{$0, $1, $2, $3}}, [$4];
        min.u32 t, $0, $1;
        min.u32 u, $2, $3;
        min.u32 t, t, u;
        setp.eq.and.b32 q, t, 0, p;
        vote.sync.any.pred r, q, -1;
        {again}
        mov.b32 t, 0;
        @p st.global.v4.b32 [$4], {{t, t, t, t}};
        }}"""


_TAKE_WORDS = _take("", "", "@r bra.uni POLL;")
# The same until the context's time limit. Words that have not come by then are 0. The clock is read every 4096 polls, which take
# some milliseconds. All lanes branch together. The limit's address depends on the clock, by a bit that is always 0: else the
# assembler reads the limit ahead of the loop, even ahead of what is sent.
_TRY_WORDS = _take(".reg .b32 polls; .reg .b64 began, now, at, limit;", "mov.b32 polls, 4096; mov.b64 began, 0;", """
        @!r bra.uni DONE;
        sub.u32 polls, polls, 1;
        setp.ne.b32 r, polls, 0;
        @r bra.uni POLL;
        mov.b32 polls, 4096;
        mov.u64 now, %globaltimer;
        setp.eq.b64 r, began, 0;
        selp.b64 began, now, began, r;
        sub.u64 now, now, began;
        shr.u64 limit, now, 63;
        mov.u64 at, tdist_ctx;
        add.u64 at, at, limit;
        ld.const.u64 limit, [at+16];
        sub.u64 limit, limit, 1;
        setp.gt.u64 r, now, limit;
        vote.sync.any.pred r, r, -1;
        @!r bra.uni POLL;
        @q mov.b32 $0, 0;
        @q mov.b32 $1, 0;
        @q mov.b32 $2, 0;
        @q mov.b32 $3, 0;
        DONE:
        not.pred q, q;
        and.pred p, p, q;""")
_WORDS = "=&r,=&r,=&r,=&r,l,r"

# The second operand of a conversion gives the lower half. From sm_89 on.
_E4M3_WORD = """{
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }"""

# Two results an instruction: rounded one by one they take a slow unit.
_HALVES = {BF16_WORD: ("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f"), FP16_WORD: ("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f")}

# LLVM gives every atomicrmw the same instruction for these GPUs, relaxed and of device scope, whatever it is asked for.
_UPDATE = ('call i{bits} asm sideeffect "atom.{sem}.{scope}.global.{word} $0, [$1], $2;", '
           '"={register},l,{register},~{{memory}}"(ptr addrspace(1) {pointer}, i{bits} %value)\n')

TARGET = Target(
    device_scope='syncscope("device")', cta_scope='syncscope("block")',
    update=_UPDATE, updates={"add": "add.u{bits}", "xchg": "exch.b{bits}"},
    states=Statement("nvidia", nvshmem_functions.not_linked(), {
        TAKE: (_TAKE_WORDS, _WORDS), E4M3_WORD: (_E4M3_WORD, "=r,f,f,f,f"), **_HALVES}),
    bounded_assembly={TRY_TAKE: (_TRY_WORDS, _WORDS)})
