# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Addresses of peers, the data dependence on a wait, and packets that carry their own flag."""
import triton.language as tl

from triton_dist.language._call import helper, primitive
from triton_dist.language._check import block_rank, can_hint, choice, element_shift, int_like, kind, pointee_bits
from triton_dist.language.abi import FENCE_SEMANTICS, SCOPES


@primitive
def _symm_delta(rank):
    return "tdist_symm_delta", (rank, )


@primitive
def _zero_after(token):
    return "tdist_zero_after", (token, )


@primitive
def _ll_store(ptr, data, flag, mask):
    pointee_bits("ll_store", ptr, (64, ))
    _check_data("ll_store", data, 32)
    return "tdist_ll_store", (ptr, data, flag, 1 if mask is None else mask)


@primitive
def _ll_load(ptr, flag, mask):
    pointee_bits("ll_load", ptr, (64, ))
    return "tdist_ll_load", (ptr, flag, 1 if mask is None else mask)


@primitive
def _ll_store_pair(ptr, data, flag, mask):
    pointee_bits("ll_store_pair", ptr, (64, ))
    _check_data("ll_store_pair", data, 64)
    return "tdist_ll_store_pair", (ptr, data, flag, 1 if mask is None else mask)


@primitive
def _ll_load_pair(ptr, flag, mask):
    pointee_bits("ll_load_pair", ptr, (64, ))
    return "tdist_ll_load_pair", (ptr, flag, 1 if mask is None else mask)


@primitive
def fence(semantic="acq_rel", scope="sys"):
    """Memory fence of the calling threads, no barrier: each thread orders its own accesses.

    `semantic` "acquire", "release" or "acq_rel"; `scope` "gpu" (this device) or "sys" (peers and host too). Any program
    or Gluon partition may call it, in uniform or divergent control flow. It does not order the async proxy (TMA)."""
    choice("fence", "semantic", semantic, FENCE_SEMANTICS)
    choice("fence", "scope", scope, SCOPES)
    return f"tdist_fence_{semantic}_{scope}", ()


def _check_data(function: str, value, bits: int) -> None:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and not (dtype.is_int() and dtype.primitive_bitwidth <= bits):
        raise TypeError(f"{function}: data must be int{bits}, got {dtype}; move other {bits}-bit types with "
                        f".to(tl.int{bits}, bitcast=True)")


@helper
def symm_at(ptr, rank):
    """`ptr`, into this rank's symmetric heap, as an address of the same object on world rank `rank`.

    `ptr` is a pointer or a tensor of pointers of any element type, `rank` an int32 scalar (or a tensor that broadcasts
    with `ptr`). Alignment survives, so wide loads and stores stay wide. One add; no communication. A rank that loads
    and stores cannot reach (base 0) gives an address that faults when used."""
    shift: tl.constexpr = element_shift(ptr)
    delta = _symm_delta(rank)
    if shift > 0:                             # a shift by 0 is dropped, and the hint with it
        delta = delta >> shift                # in elements: Triton tracks alignment through ptr + int, not casts
    if can_hint(rank):
        delta = tl.multiple_of(delta, 256 >> shift)
    return ptr + delta


@helper
def consume_token(value, token):
    """`value`, unchanged, but data dependent on `token` (the result of `wait`).

    The compiler's pipeliner hoists loads by data dependence alone, so a load that must follow a wait in a loop has to
    use something that went through here: its pointer, a tensor of pointers, a block pointer, an integer coordinate, or a
    tensor descriptor. Floating-point values of 16 bits or more work too. The result has the type of `value`.
    Free at run time but for an add; alignment and contiguity of `value` are kept.

    A tensor descriptor holds nothing that could depend on a token. There it is a CTA barrier that keeps later loads
    after the wait, and the loop that holds it is not pipelined. In a pipelined loop tie a coordinate instead:
    `descriptor.load([dl.consume_token(row, token), column])`. Gluon has no pipeliner, and there nothing is done."""
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
    """Low-latency packets: stores {data, flag} as one 8-byte relaxed system-scope store per element.

    `ptr`: tensor of pointers to 64-bit packets, 8-byte aligned, local or a peer's (symm_at). `data`: int32 of the same
    shape. `flag`: int32, scalar or tensor, by convention the call's epoch and never 0, the content of fresh memory.
    `mask`: only elements where it holds are stored. No barrier or fence is needed between data and flag: they travel
    together. It orders nothing else."""
    _ll_store(ptr, data, flag, mask)


@helper
def ll_load(ptr, flag, mask=None):
    """Low-latency packets: polls each packet until its flag equals `flag` and returns the data, int32.

    Arguments as in `ll_store`; elements where `mask` is false return 0 without polling. Every element's thread spins on
    its own packet. Relaxed: it orders nothing but the packet itself."""
    return _ll_load(ptr, flag, mask)


@helper
def ll_store_pair(ptr, data, flag, mask=None):
    """Stores two adjacent packets per element in one 16-byte access: {low half of data, flag, high half, flag}.

    `ptr`: tensor of pointers to the first of two 64-bit packets, 16-byte aligned. `data`: int64 of the same shape. The rest is
    as in `ll_store`. Only each packet is whole: what reads them checks both flags, as ll_load_pair does."""
    _ll_store_pair(ptr, data, flag, mask)


@helper
def ll_load_pair(ptr, flag, mask=None):
    """Polls two adjacent packets per element, 16 bytes at a time, until both flags equal `flag`; returns the data, int64.

    Arguments as in `ll_store_pair`; the rest is as in `ll_load`."""
    return _ll_load_pair(ptr, flag, mask)
