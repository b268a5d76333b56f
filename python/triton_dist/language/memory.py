# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Addresses of peers, the data dependence on a wait, and packets that carry their own flag."""
import triton.language as tl

from triton_dist.language._call import helper, primitive
from triton_dist.language._check import addresses, block_rank, can_hint, choice, element_shift, fits, int_like, kind, pointee_bits
from triton_dist.language.abi import FENCE_SEMANTICS, SCOPES


@primitive
def _symm_delta(rank):
    return "tdist_symm_delta", (rank, )


@primitive
def _zero_after(token):
    return "tdist_zero_after", (token, )


@primitive
def _ll_store(ptr, data, flag, mask):
    _check_packet("ll_store", ptr, flag)
    _check_data("ll_store", data, 32)
    return "tdist_ll_store", (ptr, data, flag, 1 if mask is None else mask)


@primitive
def _ll_load(ptr, flag, mask):
    _check_packet("ll_load", ptr, flag)
    return "tdist_ll_load", (ptr, flag, 1 if mask is None else mask)


@primitive
def _ll_store_pair(ptr, data, flag, mask):
    _check_packet("ll_store_pair", ptr, flag)
    _check_data("ll_store_pair", data, 64)
    return "tdist_ll_store_pair", (ptr, data, flag, 1 if mask is None else mask)


@primitive
def _ll_load_pair(ptr, flag, mask):
    _check_packet("ll_load_pair", ptr, flag)
    return "tdist_ll_load_pair", (ptr, flag, 1 if mask is None else mask)


@primitive
def fence(semantic="acq_rel", scope="sys"):
    """Memory fence: each calling thread orders its own accesses. It is no barrier.

    Any program or Gluon partition may call it, in uniform or divergent control flow. It does not order the async proxy
    (TMA).

    Args:
        semantic: "acquire", "release" or "acq_rel".
        scope: "gpu" for this device, "sys" for peers and the host as well.
    """
    choice("fence", "semantic", semantic, FENCE_SEMANTICS)
    choice("fence", "scope", scope, SCOPES)
    return f"tdist_fence_{semantic}_{scope}", ()


@primitive
def _prefetch(ptr, mask):
    addresses("prefetch", ptr)
    return "tdist_prefetch", (ptr, 1 if mask is None else mask)


def _check_packet(function: str, ptr, flag) -> None:
    pointee_bits(function, ptr, (64, ))
    fits(function, "flag", flag, 32, "flag of a packet")


def _check_data(function: str, value, bits: int) -> None:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and not (dtype.is_int() and dtype.primitive_bitwidth <= bits):
        raise TypeError(f"{function}: data must be int{bits}, got {dtype}; move other {bits}-bit types with "
                        f".to(tl.int{bits}, bitcast=True)")
    fits(function, "data", value, bits, "data")


@helper
def symm_at(ptr, rank):
    """Gives the address of the same symmetric object on another rank.

    It costs one addition and communicates nothing. Alignment is kept, so wide loads and stores stay wide. For a rank on
    another node, which loads and stores cannot reach, the address faults when it is used.

    Args:
        ptr: pointer into this rank's symmetric heap, or a tensor of such pointers, of any element type.
        rank: world rank, an int32 scalar or a tensor that broadcasts with `ptr`.

    Returns:
        The address on `rank`, of the type of `ptr`.
    """
    shift: tl.constexpr = element_shift(ptr)
    delta = _symm_delta(rank)
    if shift > 0:                             # a shift by 0 is dropped, and the hint with it
        delta = delta >> shift                # in elements: Triton tracks alignment through ptr + int, not casts
    if can_hint(rank):
        delta = tl.multiple_of(delta, 256 >> shift)
    return ptr + delta


@helper
def consume_token(value, token):
    """Makes a value depend on a token, so that the compiler cannot move loads by that value before the wait.

    The compiler's pipeliner moves loads unless data dependences forbid it. So in a loop, a load that must come after a wait
    has to use something that has passed through here. It costs one addition, and keeps alignment and contiguity.

    A tensor descriptor has no part that could depend on a token. For a descriptor this is a CTA barrier that keeps later
    loads after the wait, and a loop that contains it is not pipelined. In a pipelined loop pass a coordinate instead:
    `descriptor.load([dl.consume_token(row, token), column])`. Gluon has no pipeliner, and nothing is done there.

    Args:
        value: a pointer, a tensor of pointers, a block pointer, an integer coordinate, a tensor descriptor, or
            floating-point values of at least 16 bits.
        token: int32 token of `wait`.

    Returns:
        `value`, unchanged.
    """
    how: tl.constexpr = kind(value)
    zero = _zero_after(token)
    if can_hint(token):
        zero = tl.multiple_of(zero, 256)
    if how == "descriptor":
        tl.debug_barrier()
        tied = value
    elif how == "gluon descriptor":
        tied = value
    elif how == "block pointer":
        tied = tl.advance(value, [zero] * block_rank(value))
    elif how == "float":
        word: tl.constexpr = int_like(value)
        tied = (value.to(word, bitcast=True) + zero.to(word)).to(value.dtype, bitcast=True)
    elif how == "narrow":
        tied = (value + zero).to(value.dtype)
    else:
        tied = value + zero
    return tied


@helper
def ll_store(ptr, data, flag, mask=None):
    """Stores low-latency packets: {data, flag} in one 8-byte relaxed store of system scope per element.

    Data and flag travel together, so no barrier or fence is needed between them. It orders nothing else.

    Args:
        ptr: tensor of pointers to 64-bit packets, 8-byte aligned, local or a peer's (`symm_at`).
        data: int32 of the same shape.
        flag: int32, a scalar or of the same shape: usually the epoch of the call. Not 0, which fresh memory holds.
        mask: bool of the same shape. Elements where it is false are not stored. Default: all are.
    """
    _ll_store(ptr, data, flag, mask)


@helper
def ll_load(ptr, flag, mask=None):
    """Polls low-latency packets until their flags have arrived. The thread of each element spins on its own packet.

    The loads are relaxed: nothing but the packet itself is ordered.

    Args:
        ptr: tensor of pointers to 64-bit packets, 8-byte aligned.
        flag: int32 that each packet's flag must equal, a scalar or of the same shape.
        mask: bool of the same shape. Elements where it is false give 0 without polling. Default: all are polled.

    Returns:
        The data, int32 of the shape of `ptr`.
    """
    return _ll_load(ptr, flag, mask)


@helper
def ll_store_pair(ptr, data, flag, mask=None):
    """Stores two adjacent packets per element in one 16-byte access: {low half of data, flag, high half, flag}.

    Each packet arrives whole, but the two may arrive one after the other. A reader must check both flags, as `ll_load_pair`
    does.

    Args:
        ptr: tensor of pointers to the first of two 64-bit packets, 16-byte aligned, local or a peer's (`symm_at`).
        data: int64 of the same shape.
        flag: int32, as in `ll_store`.
        mask: bool of the same shape. Elements where it is false are not stored. Default: all are.
    """
    _ll_store_pair(ptr, data, flag, mask)


@helper
def ll_load_pair(ptr, flag, mask=None):
    """Polls two adjacent packets per element, 16 bytes at a time, until both flags have arrived. Relaxed, as `ll_load`.

    Args:
        ptr: tensor of pointers to the first of two 64-bit packets, 16-byte aligned.
        flag: int32 that both flags must equal, a scalar or of the same shape.
        mask: bool of the same shape. Elements where it is false give 0 without polling. Default: all are polled.

    Returns:
        The data, int64 of the shape of `ptr`.
    """
    return _ll_load_pair(ptr, flag, mask)


@helper
def prefetch(ptr, mask=None):
    """Asks for global memory to be brought into the L2 cache. It returns at once, reads nothing and orders nothing.

    Data that no kernel writes, such as weights, may be asked for before `gdc_wait`. Some GPUs do
    nothing.

    Args:
        ptr: tensor of pointers into this device's memory, one for each line of 128 bytes. Each must be valid.
        mask: bool of the same shape. Elements where it is false ask for nothing. Default: all do.
    """
    _prefetch(ptr, mask)
