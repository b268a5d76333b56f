# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an op should move between ranks: the formulas that the checker prints beside what it has counted."""
from triton_dist.runtime.groups import Group


def sent(call: dict, group: Group) -> dict[int, int]:
    """{world rank: bytes of data} that this rank sends in a call, `call` being what the ranks agreed on. Flags come on top.

    ag_gemm sends its shard to every peer; gemm_rs sends W - 1 chunks of partial sums to the next rank. An unfused call sends
    nothing itself: torch's collectives do.
    """
    if call["method"] == "unfused" or group.size == 1:
        return {}
    if call["op"] == "ag_gemm":
        shard = call["m"] * call["k"] * call["dtype"].itemsize
        return {rank: shard for rank in group.world_ranks if rank != group.world_ranks[group.rank]}
    chunk = call["m"] * call["n"] * call["hop_dtype"].itemsize
    return {group.world_ranks[(group.rank + 1) % group.size]: (group.size - 1) * chunk}
