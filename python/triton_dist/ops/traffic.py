# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an op should move between ranks: the formulas that the checker prints beside what it has counted."""
from triton_dist.ops import _plan
from triton_dist.runtime.groups import Group

_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all_single", "reduce_scatter")
_KNOWN = (*_COLLECTIVES, "ag_gemm", "gemm_rs", "gemm_ar", "all_reduce_rmsnorm", "all_gather_2d", "reduce_scatter_2d")


def sent(call: dict, group: Group) -> dict[int, int]:
    """{world rank: bytes of data} that this rank sends in a call, `call` being what the ranks agreed on. Flags come on top.

    ag_gemm sends its shard to every peer; gemm_rs sends W - 1 chunks of partial sums to the next rank; a collective sends
    every peer its row, all_reduce the whole tensor or, in two hops, a part of it twice, and so does gemm_ar with its product;
    all_reduce_rmsnorm in two hops sends a peer the rows that it sums, and everyone the sums of its own.
    What torch's collectives send is not counted, nor what all_to_all_vdev does, of which only the device knows; what an op
    leaves to another one is counted there. Of an op that is not known here nothing is returned.
    """
    if call.get("op") not in _KNOWN or call["method"] in ("unfused", "ring", "nccl") or group.size == 1:
        return {}
    if call["op"] in _COLLECTIVES:
        return _to_peers(call["n"] * call["dtype"].itemsize, call["op"] == "all_reduce" and call["method"] != "one_shot", group)
    if call["op"] == "all_reduce_rmsnorm":
        return _rows_to_peers(call, group)
    if call["op"] == "gemm_ar":
        nbytes = call["m"] * call["n"] * call["dtype"].itemsize
        return _to_peers(nbytes, call["tiling"].two_shot, group) if nbytes else {}
    if _plan.across_nodes(group):
        return _over_nodes(call, group)
    if call["op"] == "ag_gemm":
        shard = call["m"] * call["k"] * call["dtype"].itemsize
        return {rank: shard for rank in group.world_ranks if rank != group.world_ranks[group.rank]}
    chunk = call["m"] * call["n"] * call["hop_dtype"].itemsize
    return {group.world_ranks[(group.rank + 1) % group.size]: (group.size - 1) * chunk}


def _over_nodes(call: dict, group: Group) -> dict[int, int]:
    """Gathers: a shard to the equal place of each other node, and of each node one to every rank of the own. Reductions: a chunk
    to the equal place of each other node, and for each node one to every rank of the own, or all of these along a ring."""
    nodes, me, place = group.nodes, group.rank, group.local_rank
    beside = [index for index in nodes[group.node] if index != me]
    across = [members[place] for members in nodes if members is not nodes[group.node]]
    if call["op"] in ("ag_gemm", "all_gather_2d"):
        part = call["m"] * call["k"] * call["dtype"].itemsize
    elif call["op"] == "reduce_scatter_2d":
        part = call["m"] // group.size * call["k"] * call["dtype"].itemsize
    else:
        part = call["m"] * call["n"] * call["hop_dtype"].itemsize
        following = nodes[group.node][(place + 1) % len(nodes[group.node])]
        found = {following: len(beside) * len(nodes) * part} if beside else {}
        return {group.world_ranks[index]: nbytes for index, nbytes in (*found.items(), *dict.fromkeys(across, part).items())}
    found = {**dict.fromkeys(beside, len(nodes) * part), **dict.fromkeys(across, part)}
    return {group.world_ranks[index]: nbytes for index, nbytes in found.items()}


def _to_peers(nbytes: int, two_hops: bool, group: Group) -> dict[int, int]:
    nbytes = 2 * -(-nbytes // group.size) if two_hops else nbytes
    return {rank: nbytes for rank in group.world_ranks if rank != group.world_ranks[group.rank]}


def _rows_to_peers(call: dict, group: Group) -> dict[int, int]:
    row, m = call["n"] * call["dtype"].itemsize, call["m"]
    own = [len(range(index, m, group.size)) for index in range(group.size)]         # rows that each member sums
    rows = [own[index] + own[group.rank] if call["method"] == "two_shot" else m for index in range(group.size)]
    return {rank: rows[index] * row for index, rank in enumerate(group.world_ranks) if index != group.rank}
