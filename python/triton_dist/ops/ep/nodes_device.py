# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of dispatch and combine over nodes.

Member i of a group is at place i % EACH of node i // EACH. What a rank has for ranks of another node it puts once, to the rank
at its own place there, a chunk at a time. With each piece goes a signal, a 64-bit word that holds the call's epoch in its upper
half. Signals of a chunk: one for its box, then one for each round of rows, then one for each round of scales.
"""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.ops.internode.kernels import EQUAL, word_of

HEAD = tl.constexpr(4)  # words of a box before its content; the first one says how many rows follow


@triton.jit
def arrived_from_node(signal, epoch):
    """Waits until what another node sends in this call is here; the token for consume_token."""
    token = dl.wait(signal, 1, "sys", "acquire", word_of(epoch))
    # SHMEM's own wait, which is met at once, does what the hardware needs for loads to see what a network card has written.
    shmem.signal_wait_until(dl.consume_token(signal, token), EQUAL, word_of(epoch))
    return token
