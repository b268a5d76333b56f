# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What dispatch and combine over nodes send.

Member i of a group is at place i % EACH of node i // EACH. What a rank has for ranks of another node it puts once, to the rank
at its own place there, a chunk at a time. With each piece goes a signal, a 64-bit word that holds the call's epoch in its upper
half. Signals of a chunk: one for its box, then one for each round of rows, then one for each round of scales.
"""
import triton.language as tl

HEAD = tl.constexpr(4)  # words of a box before its content; the first one says how many rows follow
