# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The shapes that figures are given for. M, N and K are global; a rank holds its share of M and N, or of K."""
import re
from dataclasses import dataclass

from triton_dist.ops import OPS as _ALL

_MODELS = {  # model: {op: (N, K)} of its MLP, up and down projection
    "8B": {"ag_gemm": (28672, 4096), "gemm_rs": (4096, 14336)},
    "70B": {"ag_gemm": (57344, 8192), "gemm_rs": (8192, 28672)},
    "GPT3": {"ag_gemm": (49152, 12288), "gemm_rs": (12288, 49152)},
    "405B": {"ag_gemm": (106496, 16384), "gemm_rs": (16384, 53248)},
}
OPS = tuple(name for name, op in _ALL.items() if op.timed and name in _MODELS["8B"])       # those with a limit T*
_ANY_ROWS = {"gemm_ar": "gemm_rs"}          # ops of which M need not be divisible by the world size: whose N and K they have
_SMALL_M = tuple(2**i for i in range(10))
_SETS = {
    "default": [(model, 8192) for model in _MODELS] + [("8B", 2048), ("70B", 2048)],
    "large": [(model, m) for m in (8192, 16384) for model in _MODELS],
    "medium": [(model, m) for m in (2048, 4096) for model in _MODELS],
    "small": [(model, m) for m in _SMALL_M for model in _MODELS],
    "serving": [(model, m) for m in (1, 16, 64, 256, 1024, 2048) for model in _MODELS],
}
_TINY = {"tiny": (48, 64, 64), "tiny-ragged": (72, 88, 136)}      # what the emulator runs in a moment


@dataclass(frozen=True)
class Shape:
    """A problem by its global sizes."""
    name: str
    m: int
    n: int
    k: int


def parse(words: list, op: str, world: int, emulated: bool) -> list[Shape]:
    """The shapes behind the words of --shapes: MODEL, MODEL@M, a set (default, large, medium, small, serving, tiny) or M,N,K.

    M must be divisible by the world size, but for gemm_ar; of a set, shapes with another M are left out. Raises ValueError.
    """
    shapes: list = []
    usual = "serving" if op in _ANY_ROWS else "default" if op in OPS else "tiny"
    for word in words or ["tiny" if emulated else usual]:
        found = [shape for shape in _expand(word, op) if op in _ANY_ROWS or shape.m % world == 0]
        if not found:
            raise ValueError(f"--shapes {word}: M must be divisible by the {world} ranks; found "
                             + ", ".join(str(shape.m) for shape in _expand(word, op)))
        shapes += [shape for shape in found if shape not in shapes]
    return shapes


def _expand(word: str, op: str) -> list[Shape]:
    if op not in OPS and op not in _ANY_ROWS and not re.fullmatch(r"tiny|\d+,\d+,\d+", word):
        raise ValueError(f"--shapes {word}: expected tiny or M,N,K, since no model's shapes are known for {op}")
    if word in _SETS:
        return [_of_model(model, m, op) for model, m in _SETS[word]]
    if word == "tiny":
        return [Shape(name, *sizes) for name, sizes in _TINY.items()]
    model, _, rows = word.partition("@")
    if model in _MODELS and (not rows or rows.isdigit() and int(rows) > 0):
        return [_of_model(model, int(rows or 8192), op)]
    if re.fullmatch(r"\d+,\d+,\d+", word) and all(int(size) > 0 for size in word.split(",")):
        return [Shape(word, *map(int, word.split(",")))]
    raise ValueError(f"--shapes {word}: expected {', '.join(_MODELS)} (M = 8192), one of these with @M, a set ("
                     f"{', '.join([*_SETS, 'tiny'])}), or M,N,K")


def _of_model(model: str, m: int, op: str) -> Shape:
    return Shape(f"{model}@{m}", m, *_MODELS[model][_ANY_ROWS.get(op, op)])
