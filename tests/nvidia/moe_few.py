# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Few tokens: dispatch and combine whose rows are their own flags beside those by plain stores, for moe.py."""
import itertools
from typing import Any, Callable

import torch

from triton_dist import ops
from triton_dist.ops.ep import self_flagged
from triton_dist.ops.ep.self_flagged import METHOD
from triton_dist.runtime.workspace import reset
from triton_dist.testing import random_tensor

BF16, F32 = torch.bfloat16, torch.float32
WAYS = {  # how tokens are dispatched, and whether the combine is timed in place of the dispatch
    "dispatch bf16": ({}, False),
    "dispatch fp8": (dict(quant="fp8_1x128"), False),
    "combine compact": ({}, True),
    "indexed": (dict(layout="indexed"), False),
    "by expert": (dict(layout="expert"), False),
    "fp8 masked": (dict(layout="masked", quant="fp8_1x128"), False),
    "combine by expert": (dict(layout="expert"), True),
}


def few(bench: Any, routed: Callable, label: str = "", methods: tuple = (METHOD, "push")) -> None:
    """Few tokens by each method in turn: hidden 7168, 8 of 16 experts."""
    row, k, experts = (7168, 8, 16) if bench.gpu else (128, 2, 4 * bench.group.size)
    for tokens, name in itertools.product(bench.tokens or ((1, 8, 32, 128, 256, 512) if bench.gpu else (2, )),
                                          bench.ways or list(WAYS)[:3]):
        how, back = WAYS[name]
        ids, x = routed(bench, tokens, k, experts), random_tensor(tokens, row, dtype=BF16, seed=1)
        weights = random_tensor(tokens, k, dtype=F32, seed=2)
        found = []
        for method in methods:
            def call(method=method, ids=ids, x=x, weights=weights, how=how):
                return ops.ep_dispatch(x, ids, weights, num_experts=experts, method=method, **how)

            if back:
                came = call()
                y, out = random_tensor(*came.x.shape, dtype=BF16, seed=3), torch.empty_like(x)
                by = came.topk_weights if "layout" in how else None

                def call(method=method, came=came, y=y, out=out, by=by):
                    return ops.ep_combine(y, came.handle, topk_weights=by, out=out, method=method)
            found.append(bench.us(f"{label}{name}, {tokens} tokens, {method}", call))
        bench.say(f"{label}{name:18s} {tokens:4d} tokens  " + "   ".join(
            f"{method} {us:7.2f} us" for method, us in zip(methods, found) if us is not None))


def sweep(bench: Any, routed: Callable) -> None:
    """`few` by other numbers of threads, vectors and programs. The fastest belong into ops/ep/self_flagged.py."""
    names = ("MOST_THREADS", "MOST_EACH", "MOST_PARTS")
    kept = [getattr(self_flagged, name) for name in names]
    for values in ((1024, 1, 4), (1024, 1, 1), (512, 1, 4), (512, 2, 1), (256, 4, 1)) if bench.gpu else ((128, 1, 1), ):
        reset()
        for name, value in zip(names, values):
            setattr(self_flagged, name, value)
        few(bench, routed, f"{values}: ", (METHOD, ))
    reset()
    for name, value in zip(names, kept):
        setattr(self_flagged, name, value)
