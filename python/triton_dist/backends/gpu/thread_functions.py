# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The library of thread functions (`language/threads_abi.py`) of a GPU vendor: one file of textual LLVM IR.

Each function is one instruction or a few, which every thread that calls it executes. Loads, stores and atomics are LLVM's own,
with its scopes. What only a vendor has, special registers and shuffles, is in its threads.ll.
"""
import functools
import hashlib
import re
from pathlib import Path

from triton_dist.backends.gpu.device_runtime import Target, target, update
from triton_dist.language import threads_abi as abi
from triton_dist.language.abi import ROWS
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.files import cached

_BACKENDS = Path(__file__).resolve().parents[1]
_ORDER = {"relaxed": "monotonic", "sc": "seq_cst"}

_LOAD = """
define i{bits} @{symbol}(i64 %address) alwaysinline nounwind {{
  %p = inttoptr i64 %address to ptr addrspace(1)
  %value = load atomic i{bits}, ptr addrspace(1) %p {scope} {order}, align {bytes}
  ret i{bits} %value
}}
"""
_STORE = """
define i32 @{symbol}(i64 %address, i{bits} %value) alwaysinline nounwind {{
  %p = inttoptr i64 %address to ptr addrspace(1)
{before}  store atomic i{bits} %value, ptr addrspace(1) %p {scope} {order}, align {bytes}
  ret i32 0
}}
"""
_UPDATE = """
define i{bits} @{symbol}(i64 %address, i{bits} %value) alwaysinline nounwind {{
  %p = inttoptr i64 %address to ptr addrspace(1)
{before}  %old = atomicrmw {op} ptr addrspace(1) %p, i{bits} %value {scope} {order}, align {bytes}
  ret i{bits} %old
}}
"""
_UPDATE_BY_VENDOR = """
define i{bits} @{symbol}(i64 %address, i{bits} %value) alwaysinline nounwind {{
  %p = inttoptr i64 %address to ptr addrspace(1)
  %old = {call}  ret i{bits} %old
}}
"""
_SWAP = """
define i{bits} @{symbol}(i64 %address, i{bits} %expected, i{bits} %value) alwaysinline nounwind {{
  %p = inttoptr i64 %address to ptr addrspace(1)
{before}  %pair = cmpxchg ptr addrspace(1) %p, i{bits} %expected, i{bits} %value {scope} {order} {failure}, align {bytes}
  %old = extractvalue {{ i{bits}, i1 }} %pair, 0
  ret i{bits} %old
}}
"""
_FENCE = """
define i32 @{symbol}() alwaysinline nounwind {{
  fence {scope} {order}
{after}  ret i32 0
}}
"""
# Volatile, since no target has 16-byte atomics: relaxed and of system scope on both vendors' hardware.
_STORE_V4 = """
define i32 @tdist_simt_st_v4(i64 %address, i32 %a, i32 %b, i32 %c, i32 %d) alwaysinline nounwind {
  %v0 = insertelement <4 x i32> poison, i32 %a, i32 0
  %v1 = insertelement <4 x i32> %v0, i32 %b, i32 1
  %v2 = insertelement <4 x i32> %v1, i32 %c, i32 2
  %words = insertelement <4 x i32> %v2, i32 %d, i32 3
  %p = inttoptr i64 %address to ptr addrspace(1)
  store volatile <4 x i32> %words, ptr addrspace(1) %p, align 16
  ret i32 0
}
"""


def _drain(found: Target, vendor: str) -> str:
    """What the vendor's releases call, with what it declares. It is internal to the device runtime, so it may be here too."""
    if not found.after_release:
        return ""
    text = (_BACKENDS / vendor / "device.ll").read_text()
    name, = re.findall(r"@(\w+)\(\)", found.after_release)
    function, = re.findall(rf"^define internal void @{name}\(\).*?^}}\n", text, re.M | re.S)
    used = sorted(set(re.findall(r"ptr[^\n]* (@\w+)", function)))
    variables = [re.search(rf"^{re.escape(variable)} = .*\n", text, re.M) for variable in used]
    return "\n" + "".join(variable[0] for variable in variables if variable) + "\n" + function


def _update(found: Target, op: str, sem: str, scope: str, bits: int, ordered: dict) -> str:
    if found.update:
        return _UPDATE_BY_VENDOR.format(symbol=ordered["symbol"], bits=bits, call=update(found, op, bits, sem, scope, "%p"))
    return _UPDATE.format(op=op, bits=bits, bytes=bits // 8, **ordered)


def render(vendor: str) -> str:
    """Text of the library of `vendor` ("nvidia" or "amd")."""
    found = target(vendor)
    scopes, drain = {"cta": found.cta_scope, "gpu": found.device_scope, "sys": ""}, found.after_release
    parts = [(_BACKENDS / vendor / "threads.ll").read_text(), _drain(found, vendor), _STORE_V4]

    def order(symbol: str, sem: str, scope: str) -> dict:
        releases = bool(drain) and sem in ("release", "acq_rel") and scope != "cta"
        plain = {"release": "monotonic", "acq_rel": "acquire"}.get(sem, sem) if releases else sem
        before = f"  fence {scopes[scope]} release\n{drain}" if releases else ""
        word = _ORDER.get(plain, plain)
        return dict(symbol=symbol, scope=scopes[scope], order=word, before=before,
                    failure="acquire" if word in ("acquire", "acq_rel") else "monotonic")

    for bits in abi.WIDTHS:
        width = dict(bits=bits, bytes=bits // 8)
        for scope in abi.SCOPES:
            parts += [_LOAD.format(**order(f"tdist_simt_ld_b{bits}_{sem}_{scope}", sem, scope), **width)
                      for sem in abi.LOAD_SEMANTICS]
            parts += [_STORE.format(**order(f"tdist_simt_st_b{bits}_{sem}_{scope}", sem, scope), **width)
                      for sem in abi.STORE_SEMANTICS]
            for sem in abi.UPDATE_SEMANTICS if bits in abi.WORDS else ():
                parts += [_update(found, op, sem, scope, bits, order(f"tdist_simt_{op}_b{bits}_{sem}_{scope}", sem, scope))
                          for op in abi.UPDATES]
                parts.append(_SWAP.format(**order(f"tdist_simt_cas_b{bits}_{sem}_{scope}", sem, scope), **width))
    parts += [_FENCE.format(symbol=f"tdist_simt_fence_{sem}_{scope}", scope=scopes[scope], after=drain,
                            order=_ORDER.get(sem, sem))
              for scope in abi.SCOPES for sem in abi.FENCE_SEMANTICS]
    return "".join(parts)


@functools.cache
def library(vendor: str) -> str:
    """Path of the library, written unless it is there. It is named by its content and that of the table."""
    text = render(vendor)
    digest = hashlib.sha256((text + repr([ROWS[symbol] for symbol in sorted(ROWS)])).encode()).hexdigest()[:16]
    return cached(cache_dir() / "device", f"tdist_simt_{vendor}_{digest}.ll", text)
