# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which compiled kernel serves a launch.

Triton finds it by a text that it writes for all arguments, layouts of descriptors among them, at each look-up. That is most of
the host time of a plan for a new number of rows. Here it is found by what Triton specialises a kernel for, as it is.
"""
from typing import Any, Callable, NamedTuple, Sequence

from torch import Tensor

_ALIGNMENT = 16                 # bytes of addresses, and divisor of integers, that Triton compiles for
_SHORT = 2**31                  # bytes of storage below which it computes offsets by 32 bits, for GPUs where that is faster


class Variant(NamedTuple):
    """A kernel that is compiled for arguments of some kinds, and loaded.

    integers: as of `specialised`; None where the storages of tensors matter, which may be larger for another number of rows.
    constants: values of its trailing constexprs. bind(grid, args): a launcher (stream, arguments) that needs less host time than
    Triton's, or None where there is none. layouts: of descriptors. Kernel and layouts, which it is found by the identity of,
    live as long.
    """
    kernel: Any
    layouts: list
    compiled: Any
    integers: dict | None
    constants: tuple
    bind: Callable[[tuple, tuple], Any]


def kinds(parameters: Sequence, args: Sequence, by_storage: bool = False) -> tuple:
    """What Triton looks at in arguments for these parameters of a kernel. For arguments of equal kinds it takes the same binary.

    by_storage: whether it looks at how large a tensor's storage is.
    """
    found: list = []
    for value, parameter in zip(args, parameters):
        if isinstance(value, Tensor):
            short = by_storage and value.untyped_storage().nbytes() < _SHORT
            found.append((value.dtype, value.data_ptr() % _ALIGNMENT == 0, short))
        elif type(value) is int:
            width = -2**31 <= value < 2**31, value < 2**63
            found.append(width if parameter.do_not_specialize else (width, value == 1, value % _ALIGNMENT == 0))
        elif hasattr(value, "base"):
            found.append((type(value), value.base.dtype, tuple(value.block_shape), id(getattr(value, "layout", None))))
        else:
            found.append((type(value), value))
    return tuple(found)


def specialised(parameters: Sequence, args: Sequence) -> dict:
    """{position: (its parameter, its kind)} of the integers among `args` of which Triton looks at the value."""
    return {i: (parameter, *kinds((parameter,), (value,))) for i, (parameter, value) in enumerate(zip(parameters, args))
            if type(value) is int and not parameter.do_not_specialize}


def no_launcher(grid: tuple, args: tuple) -> None:
    """`bind` where there is no launcher but Triton's."""
