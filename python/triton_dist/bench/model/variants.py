# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed in each phase of a model, by name."""
from functools import partial
from typing import Any, Callable, Container, NamedTuple

import torch

from triton_dist.bench.model import ways
from triton_dist.runtime.streams import device

ALONE = "compute alone"


class Variant(NamedTuple):
    """make(group) -> Way; compiled: None, or what torch.compile is given."""
    make: Callable
    compiled: dict | None = None
    ours: bool = False


_ASYNC_TP = {"options": {"_micro_pipeline_tp": True}}
_TRAIN = {
    ALONE: Variant(ways.Alone),
    "NCCL": Variant(ways.Library),
    "NCCL, compiled": Variant(ways.Functional, {}),
    "torch async TP": Variant(ways.Functional, _ASYNC_TP),
    "ours": Variant(ways.Ours, ours=True),
    "ours, compiled": Variant(ways.Ours, {}, ours=True),
}
VARIANTS: dict[str, dict[str, Variant]] = {
    "prefill": {
        **_TRAIN,
        "NCCL all-reduce": Variant(ways.LibraryWhole),
        "NCCL all-reduce, compiled": Variant(ways.FunctionalWhole, {}),
        "torch symmetric memory": Variant(ways.SymmetricMemory),
    },
    "decode": {
        ALONE: Variant(ways.AloneWhole),
        "NCCL": Variant(ways.LibraryWhole),
        "NCCL, compiled": Variant(ways.FunctionalWhole, {}),
        "torch symmetric memory, one shot": Variant(partial(ways.SymmetricMemoryWhole, kind="one_shot")),
        "torch symmetric memory, two shots": Variant(partial(ways.SymmetricMemoryWhole, kind="two_shot")),
        "ours": Variant(ways.OursWhole, ours=True),
        "ours, compiled": Variant(ways.OursWhole, {}, ours=True),
        "ours, fused norm": Variant(ways.OursNorm, ours=True),
        "ours, fused norm, compiled": Variant(ways.OursNorm, {}, ours=True),
        "ours, fused product and norm": Variant(ways.OursProductNorm, ours=True),
        "ours, fused product, norm and gate": Variant(ways.OursGated, ours=True),
    },
    "train": _TRAIN,
}
SYMMETRIC = ("torch async TP", "torch symmetric memory", "torch symmetric memory, one shot", "torch symmetric memory, two shots")


def compiled(forward: Callable, options: dict | None) -> Callable:
    """`forward` by torch.compile, on a CPU without a code generator, or as it is."""
    if options is None:
        return forward
    torch.compiler.reset()
    if device().type != "cuda":
        return torch.compile(forward, backend="aot_eager", dynamic=False)
    return torch.compile(forward, dynamic=False, **options)


def word(name: str) -> str:
    """What a variant is called on the command line: "ours-compiled" for "ours, compiled"."""
    return name.lower().replace(",", "").replace(" ", "-")


def chosen(phase: str, words: str | None) -> list[str]:
    """The variants of a phase that `words`, separated by commas, name; None: all. Raises ValueError for what there is not."""
    known = {word(name): name for name in VARIANTS[phase]}
    asked = list(known) if words is None else [each.strip() for each in words.split(",") if each.strip()]
    wrong = [each for each in asked if each not in known]
    if wrong or not asked:
        raise ValueError(f"--ways: for {phase} expected some of {', '.join(known)}, found {words!r}")
    return [known[each] for each in asked]


def possible(phase: str, chosen: Container[str] | None, emulated: bool) -> tuple[dict[str, Variant], dict[str, Any]]:
    """(the variants among those chosen, None: all, that this machine can run; {name: why not})."""
    every = {name: variant for name, variant in VARIANTS[phase].items() if chosen is None or name in chosen}
    missing = {name: "torch's symmetric memory needs GPUs" for name in every if emulated and name in SYMMETRIC}
    return {name: variant for name, variant in every.items() if name not in missing}, missing
