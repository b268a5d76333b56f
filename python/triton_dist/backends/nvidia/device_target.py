# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What NVIDIA's device runtime has beside device.ll."""
from triton_dist.backends.gpu.device_runtime import Target
from triton_dist.backends.nvidia import nvshmem_functions
from triton_dist.language.abi import TAKE
from triton_dist.language._linked import Statement

# $0 to $3: the words; $4: address; $5: whether this element is taken.
_TAKE_WORDS = """{
        .reg .pred q;
        .reg .b32 t, u;
        mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
        setp.eq.b32 q, $5, 0;
        @q bra DONE;
        POLL:
        ld.relaxed.sys.global.v4.b32 {$0, $1, $2, $3}, [$4];
        min.u32 t, $0, $1;
        min.u32 u, $2, $3;
        min.u32 t, t, u;
        setp.eq.b32 q, t, 0;
        @q bra POLL;
        mov.b32 t, 0;
        st.global.v4.b32 [$4], {t, t, t, t};
        DONE:
        }"""

TARGET = Target(
    device_scope='syncscope("device")',
    states=Statement("nvidia", nvshmem_functions.not_linked(), {TAKE: (_TAKE_WORDS, "=&r,=&r,=&r,=&r,l,r")}))
