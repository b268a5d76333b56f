# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the self-flagged stores of language/selfflag.py."""
from typing import Any

import numpy as np
import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, twin
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.memory.segments import picked
from triton_dist.backends.emulator.rebuild import primitives
from triton_dist.backends.emulator.twins.dist import lanes, spread
from triton_dist.backends.emulator.twins.memory import wait_word
from triton_dist.backends.emulator.values.promotion import I32, I64, info
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.backends.emulator.values.tensors import filled

_WORD, _PAIR = info(core.int32), info(I64)
_NOTHING = IntScalar(0, I32)


@twin("selfflag._takes_whole_slots", "selfflag._takes_in_time")
def takes_whole_slots() -> bool:
    """Nothing is compiled here."""
    return False


def store(address: Any, a: Any, b: Any, c: Any, d: Any, pred: Any) -> Any:
    shape, _, (at, *columns) = lanes(pred, address, a, b, c, d, ty=I32)
    running, mem = scheduler.active(), memory.active()
    for i, words in enumerate(columns):      # of the four words, one may be seen before another
        running.point()
        running.current.polled = None
        if not at.numel():
            continue
        some = at + 4 * i
        if not bool(words.all()):
            raise fault("sf_store of a word that is 0, which its receiver takes for one that has not arrived; pass the words "
                        "through sf_filled", "self-flag")
        left = mem.glance(some)
        if left.any():
            where = int(some[int(left.nonzero()[0][0])])
            raise fault(f"sf_store at {where:#x} into a slot that is not empty: its taker has not emptied it, or it has two "
                        "senders", "self-flag")
        mem.store_points(some, _WORD, words, "packet", "sys")
    return filled(_NOTHING, shape) if shape else _NOTHING


def take_pair(address: Any, pred: Any) -> Any:
    shape, chosen, (at, ) = lanes(pred, address)
    running, mem = scheduler.active(), memory.active()
    found, empty = np.empty((at.numel(), 2), np.int32), torch.zeros(at.shape, dtype=torch.int32)
    for i in range(2):
        running.point()
        if not at.numel():
            continue
        words = at + 4 * i
        seen = mem.glance(words)
        if not seen.all():
            for late in picked(words, (seen == 0).nonzero()[0]).tolist():
                wait_word(late, 32, "ne", lambda: mem.peek(late, 32) != 0, 0)
        found[:, i] = mem.load_points(words, _WORD, "packet", "sys").numpy()
        mem.store_points(words, _WORD, empty, "emptied", "sys")
    return spread(found, chosen, shape, _PAIR)


def not_bounded(address: Any, pred: Any) -> Any:
    """The emulator bounds its waits itself."""
    shape, _, _ = lanes(pred, address)
    return filled(_NOTHING, shape) if shape else _NOTHING


primitives.SYMBOLS.update({"tdist_sf_store": store, "tdist_sf_take_pair": take_pair, "tdist_sf_give_up": not_bounded})
