# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The words of `bench model`: models, phases, options."""
import argparse
from dataclasses import dataclass

COMMAND = "model"
ROWS = {"prefill": [2048, 8192], "decode": [1, 16, 64, 256], "train": [4096]}         # by phase
PHASES = tuple(ROWS)


@dataclass(frozen=True)
class Arch:
    """A decoder's sizes, in features; `head_norms`: queries and keys pass a norm, as Qwen3's do."""
    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    head_norms: bool = False


ARCHS = {arch.name: arch for arch in (
    Arch("llama3-8b", 4096, 14336, 32, 8, 128),
    Arch("llama3-70b", 8192, 28672, 64, 8, 128),
    Arch("qwen3-32b", 5120, 25600, 64, 8, 128, head_norms=True),
    Arch("tiny", 64, 128, 8, 8, 8, head_norms=True),
)}


def options(sub: argparse.ArgumentParser) -> None:
    """Adds the options that only this command has."""
    sub.add_argument("--arch", choices=tuple(ARCHS), help="whose layers (default: llama3-8b; emulated: tiny)")
    sub.add_argument("--phase", choices=PHASES, default="prefill")
    sub.add_argument("--rows", nargs="+", type=int, default=[], metavar="N",
                     help="of a sequence, or sequences that decode (default: 2048 and 8192; 1, 16, 64 and 256; 4096)")
    sub.add_argument("--ways", metavar="A,B",
                     help="of ours, ours-compiled, nccl, nccl-compiled, torch-async-tp and so on (default: all of the phase); a "
                          "name that there is not prints them")
    sub.add_argument("--cached", type=int, metavar="N", help="decode: positions in each cache (default: 1024)")
    sub.add_argument("--layers", type=int, metavar="N", help="how many (default: 4)")
