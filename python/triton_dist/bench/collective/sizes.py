# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The words of the command line of a collective's benchmark: ops, methods, peers, and what --sizes means."""
import re

from triton_dist.ops import OPS
from triton_dist.ops.exchange.collective import Collective

_COLLECTIVES = [op for op in OPS.values() if isinstance(op, Collective)]
COMMANDS = {op.name.removesuffix("_single"): op.name for op in _COLLECTIVES}        # command: op
METHODS = tuple(dict.fromkeys(("auto", *(method for op in _COLLECTIVES for method in op.methods))))
PEERS = ("nccl", "symm_one_shot", "symm_two_shot")

# Commands whose rows compare with peers, instead of a limit: collectives, and ops that add a residual to a sum.
BESIDE_PEERS = (*COMMANDS, *(name for name, op in OPS.items() if "residual" in op.tensors))

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST = 1 << 32


def parse(words: list, emulated: bool) -> list[int]:
    """Bytes behind the words of --sizes: a size such as 64K, or a range such as 1K:128M, which doubles. Raises ValueError."""
    sizes: list = []
    for word in words or ["256:4K" if emulated else "1K:128M"]:
        first, colon, last = word.partition(":")
        size, end = _bytes(first, word), _bytes(last if colon else first, word)
        if end < size:
            raise ValueError(f"--sizes {word}: expected the smaller size first")
        while size <= end:
            sizes += [size] if size not in sizes else []
            size *= 2
    return sizes


def text(nbytes: int) -> str:
    """64K for 65536; bytes where no unit fits."""
    unit = max((unit for unit, value in _UNITS.items() if nbytes % value == 0), key=_UNITS.get)
    return f"{nbytes // _UNITS[unit]}{unit}"


def _bytes(text: str, word: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text, re.I)
    size = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if not 0 < size <= _LARGEST:
        raise ValueError(f"--sizes {word}: expected bytes such as 64K or a range such as 1K:128M, above 0 and at most 4G")
    return size
