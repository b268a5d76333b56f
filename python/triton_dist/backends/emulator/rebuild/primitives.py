# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How a call of one of our primitives, or of any ABI symbol, reaches its Python twin."""
from typing import Any, Callable

from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import invalid, unsupported
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.scalars import Scalar, constant
from triton_dist.backends.emulator.values.tensors import Tensor
from triton_dist.language._call import SELECT
from triton_dist.language.abi import ROWS

SYMBOLS: dict = {}        # ABI symbol -> twin; filled by twins/dist.py
LISTENERS: dict = {}      # ABI symbol -> what is told the arguments of a call as they are, before they are cast


def call(symbol: str, args: Any) -> Any:
    """Calls the twin of an ABI symbol with its arguments cast to the row's types."""
    row = ROWS.get(symbol)
    fn = SYMBOLS.get(symbol)
    if row is None or fn is None:
        raise unsupported(f"the emulator has no twin of the device function {symbol}")
    if len(args) != len(row.args):
        raise invalid(f"{symbol} takes {len(row.args)} arguments, {len(args)} given")
    if not getattr(scheduler.active().current, "tdist", True):
        raise invalid(f"{symbol} in a kernel that is not linked with the device runtime: decorate it with "
                      "@triton_dist.jit instead of @triton.jit")
    if symbol in LISTENERS:
        LISTENERS[symbol](*args)
    typed = [
        cast(x if isinstance(x, (Scalar, Tensor)) else constant(x), getattr(core, ty)) for x, ty in zip(args, row.args)
    ]
    return fn(*typed)


def caller(primitive: Any) -> Callable:
    """A primitive of triton_dist.language as rebuilt code calls it."""
    select = getattr(primitive, SELECT)

    def run(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_semantic", None)
        return call(*select(*args, **kwargs))
    return run
