# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where the rows of experts lie, for kernels of Triton, and by `gluon.jit(rows_of.fn)` of Gluon: `tl` works in both."""
import triton
import triton.language as tl


@triton.jit
def rows_of(begins, counts, e, there, room, MASKED: tl.constexpr, COUNTED: tl.constexpr):
    """(first row, number of rows) of experts `e`, int32 like e; no rows where it is not `there`.

    begins: [experts + 1] of the first rows; not used where MASKED: then expert e begins at row e * room. counts: [experts], where
    MASKED or COUNTED; else an expert's rows end where the next one begins. Of `room` rows, or of each expert's, none is outside.
    """
    if MASKED:
        begin = e * room
        count = tl.minimum(tl.load(counts + e, mask=there, other=0).to(tl.int32), room)
    else:
        begin = tl.load(begins + e, mask=there, other=0).to(tl.int32)
        if COUNTED:
            count = tl.load(counts + e, mask=there, other=0).to(tl.int32)
        else:
            count = tl.load(begins + e + 1, mask=there, other=0).to(tl.int32) - begin
        count = tl.minimum(count, room - begin)         # what was cut off is not there
    return begin, tl.maximum(count, 0)
