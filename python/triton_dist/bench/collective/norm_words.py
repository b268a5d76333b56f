# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The words of the command line of all_reduce_rmsnorm's benchmark: methods, peers, and what --shapes means."""
import re

from triton_dist.bench.shapes import Shape
from triton_dist.ops import OPS
from triton_dist.ops.all_reduce_rmsnorm_quant.op import QUANTS as _QUANTS

COMMAND = "all_reduce_rmsnorm"
METHODS = ("auto", *OPS[COMMAND].methods)
QUANTS = tuple(_QUANTS)
PEERS = ("nccl", "parts", "symm_one_shot", "symm_two_shot")
_DEFAULT = tuple(f"{m},8192{k}" for k in ("", ",4096") for m in (1, 8, 32, 128, 256))
_TINY = ("3,40", "3,40,16")


def parse(words: list, emulated: bool) -> list[Shape]:
    """The shapes of --shapes: M,N for rows alone, M,N,K for a chain whose product sums over K on each rank. Raises ValueError."""
    shapes = []
    for word in words or (_TINY if emulated else _DEFAULT):
        if not re.fullmatch(r"\d+,\d+(,\d+)?", word) or not all(int(size) for size in word.split(",")):
            raise ValueError(f"--shapes {word}: expected M,N such as 32,8192 or, after a product, M,N,K such as 32,8192,4096")
        m, n, k = (*map(int, word.split(",")), 0)[:3]
        shapes.append(Shape(word, m, n, k))
    return shapes
