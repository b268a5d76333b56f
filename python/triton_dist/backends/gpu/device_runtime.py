# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device runtime of a GPU vendor: one file of textual LLVM IR that Triton links through `extern_libs`.

It is what the vendor states to the language (`device_target.py`), common.ll, the vendor's device.ll, and the families of
functions that differ only in width, comparison, semantic and scope, written here as templates. The file is made on first use,
in the cache, and named by its content and by the source of `triton_dist.language`: Triton does not hash builtins, and not
every compiler hashes what is in a library, so a changed primitive gives a changed file and that a recompiled kernel.

Bounded waits (protocol rule 18) are a second variant of the same symbols. The unbounded one has no trace of them.
"""
import functools
import hashlib
import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from triton_dist.language import abi
from triton_dist.language._linked import Statement
from triton_dist.runtime.backend import backends
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.files import cached

_HERE = Path(__file__).parent
_LANGUAGE = Path(abi.__file__).parent


@dataclass(frozen=True)
class Target:
    """What a vendor's code generator needs beside the common text. Its package has one, `device_target.TARGET`.

    device_scope: device scope in the vendor's LLVM backend; system scope is the default and has no name.
    states: the file's first line. bounded_assembly: what it states besides where waits are bounded.
    after_release: stands between a release fence and the store that it releases; after_wait: ends each wait; rest: stands
    between two polls.
    signals_itself: whether the first thread of a program tells others by a function of ours. Else Triton's release serves.
    cta_scope: the scope of one program.
    update: an atomic read-modify-write by the vendor's assembly, "" where LLVM's keeps order and scope; updates: its words.
    """
    device_scope: str
    states: Statement
    bounded_assembly: dict = field(default_factory=dict)
    after_release: str = ""
    after_wait: str = ""
    rest: str = ""
    signals_itself: bool = False
    cta_scope: str = ""
    update: str = ""
    updates: dict = field(default_factory=dict)


def target(vendor: str) -> Target:
    """What the backend named `vendor` has; found as the backend itself is, by the registry."""
    return importlib.import_module(f"{backends()[vendor]}.device_target").TARGET


# Lanes share the flags, each polls its own relaxed, one acquire orders what follows. No CTA barrier, no thread index:
# right in any warp-specialised partition. The lane barrier hands one lane's acquire on to the others.
_WAIT = """
define i32 @{symbol}(i64 %flags, i32 %n, i{bits} %value) alwaysinline convergent nounwind {{
entry:
  %lane = call i32 @tdist_lane()
  %lanes = call i32 @tdist_lanes()
  br label %next
next:
  %i = phi i32 [ %lane, %entry ], [ %i.next, %reached ]
  %more = icmp slt i32 %i, %n
  br i1 %more, label %poll, label %done
poll:
  %index = zext i32 %i to i64
  %offset = mul i64 %index, {bytes}
  %address = add i64 %flags, %offset
  %flag = inttoptr i64 %address to ptr addrspace(1)
  br label %spin
spin:
{counted}  %seen = load atomic i{bits}, ptr addrspace(1) %flag {scope} monotonic, align {bytes}
{compare}
  br i1 %ok, label %reached, label %{miss}
{bound}reached:
  %i.next = add i32 %i, %lanes
  br label %next
done:
{acquire}{after_wait}  call void @tdist_lanes_sync()
  ret i32 0
}}
"""
_COMPARE = {
    "eq": "  %ok = icmp eq i{bits} %seen, %value",
    "ge": "  %ahead = sub i{bits} %seen, %value\n  %ok = icmp sge i{bits} %ahead, 0",     # signed: epochs may wrap
}

_LL_LOAD = """
define i32 @tdist_ll_load(i64 %address, i32 %value, i32 %pred) alwaysinline convergent nounwind {{
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %poll, label %done
poll:
  %flag = inttoptr i64 %address to ptr addrspace(1)
  br label %spin
spin:
{counted}  %packet = load atomic i64, ptr addrspace(1) %flag monotonic, align 8
  %high = lshr i64 %packet, 32
  %seen = trunc i64 %high to i32
  %ok = icmp eq i32 %seen, %value
  br i1 %ok, label %reached, label %{miss}
{bound}reached:
  %data = trunc i64 %packet to i32
  br label %done
done:
  %result = phi i32 [ 0, %entry ], [ %data, %reached ]
  ret i32 %result
}}
"""

_LL_LOAD_PAIR = """
define i64 @tdist_ll_load_pair(i64 %address, i32 %value, i32 %pred) alwaysinline convergent nounwind {{
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %poll, label %done
poll:
  %flag = inttoptr i64 %address to ptr addrspace(1)
  br label %spin
spin:
{counted}  %pair = load volatile <4 x i32>, ptr addrspace(1) %flag, align 16
  %first = extractelement <4 x i32> %pair, i32 1
  %second = extractelement <4 x i32> %pair, i32 3
  %first.ok = icmp eq i32 %first, %value
  %second.ok = icmp eq i32 %second, %value
  %seen = select i1 %first.ok, i32 %second, i32 %first
  %ok = and i1 %first.ok, %second.ok
  br i1 %ok, label %reached, label %{miss}
{bound}reached:
  %low = extractelement <4 x i32> %pair, i32 0
  %high = extractelement <4 x i32> %pair, i32 2
  %low.wide = zext i32 %low to i64
  %high.wide = zext i32 %high to i64
  %high.up = shl i64 %high.wide, 32
  %data = or i64 %high.up, %low.wide
  br label %done
done:
  %result = phi i64 [ 0, %entry ], [ %data, %reached ]
  ret i64 %result
}}
"""

_SF_TAKE_PAIR = """
define i64 @tdist_sf_take_pair(i64 %address, i32 %pred) alwaysinline convergent nounwind {{
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %poll, label %done
poll:
  %value = add i32 0, 1
  %flag = inttoptr i64 %address to ptr addrspace(1)
  br label %spin
spin:
{counted}  %words = load atomic i64, ptr addrspace(1) %flag monotonic, align 8
  %low = trunc i64 %words to i32
  %shifted = lshr i64 %words, 32
  %high = trunc i64 %shifted to i32
  %low.full = icmp ne i32 %low, 0
  %high.full = icmp ne i32 %high, 0
  %seen = select i1 %low.full, i32 %high, i32 %low
  %ok = and i1 %low.full, %high.full
  br i1 %ok, label %reached, label %{miss}
{bound}reached:
  store atomic i64 0, ptr addrspace(1) %flag monotonic, align 8
  br label %done
done:
  %result = phi i64 [ 0, %entry ], [ %words, %reached ]
  ret i64 %result
}}
"""

# A slot of self-flagged words that has not filled in time.
_SF_GIVE_UP = """
define i32 @tdist_sf_give_up(i64 %address, i32 %pred) alwaysinline convergent nounwind {
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %late, label %done
late:
  %site = call i32 @tdist_site()
  call void @tdist_give_up(i32 1, i64 %address, i64 1, i64 0, i32 %site)
  br label %late
done:
  ret i32 0
}
"""
_SF_IN_TIME = """
define i32 @tdist_sf_give_up(i64 %address, i32 %pred) alwaysinline nounwind {
  ret i32 0
}
"""

# What a bounded wait adds: polls are counted, and only every 64th that did not succeed looks at the clock, which takes longer to
# read than a flag.
_COUNTED = """  %misses = phi i32 [ 0, %poll ], [ %misses.next, %miss ], [ %misses.next, %look ], [ %misses.next, %expire ]
  %began = phi i64 [ 0, %poll ], [ %began, %miss ], [ %start, %look ], [ %start, %expire ]
"""
_BOUND = """miss:
{rest}  %misses.next = add i32 %misses, 1
  %few = and i32 %misses.next, 63
  %due = icmp eq i32 %few, 0
  br i1 %due, label %look, label %spin
look:
  %new = icmp eq i64 %began, 0
  %now = call i64 @tdist_clock_ns()
  %start = select i1 %new, i64 %now, i64 %began
  %expired = call i1 @tdist_expired(i64 %start)
  br i1 %expired, label %expire, label %spin
expire:
{widen}  %site = call i32 @tdist_site()
  call void @tdist_give_up(i32 {n}, i64 %address, i64 {wanted}, i64 {seen}, i32 %site)
  br label %spin
"""
_WIDEN = "  %wanted.wide = sext i32 %value to i64\n  %seen.wide = sext i32 %seen to i64\n"

_NOTIFY_WARP = """
define i32 @{symbol}(i64 %address, i{bits} %value) alwaysinline convergent nounwind {{
entry:
  call void @tdist_lanes_sync()
  %lane = call i32 @tdist_lane()
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %signal, label %done
signal:
  %flag = inttoptr i64 %address to ptr addrspace(1)
{release}  br label %done
done:
  ret i32 0
}}
"""

# All threads of the program have passed a barrier, and their stores were done before it.
_SIGNAL = """
define i32 @{symbol}(i64 %address, i{bits} %value) alwaysinline convergent nounwind {{
entry:
  %first = call i1 @tdist_is_first_thread()
  br i1 %first, label %signal, label %done
signal:
  %flag = inttoptr i64 %address to ptr addrspace(1)
{release}  br label %done
done:
  ret i32 0
}}
"""
_STORE = {
    "set": "  store atomic i{bits} %value, ptr addrspace(1) %flag {scope} {order}, align {bytes}\n",
    "add": "  %old = atomicrmw add ptr addrspace(1) %flag, i{bits} %value {scope} {order}, align {bytes}\n",
}

_FENCE = """
define i32 @{symbol}() alwaysinline nounwind {{
  fence {scope} {semantic}
{after_release}  ret i32 0
}}
"""


def _release(target: Target, op: str, scope: str, bits: int) -> str:
    """Stores or adds %value to %flag after everything that the calling thread has stored, or knows to be stored."""
    width = dict(bits=bits, bytes=bits // 8, scope=scope)
    if op == "add" and target.update:
        return "  %old = " + update(target, "add", bits, "release", "gpu" if scope else "sys", "%flag")
    if not target.after_release:
        return _STORE[op].format(order="release", **width)
    return f"  fence {scope} release\n{target.after_release}" + _STORE[op].format(order="monotonic", **width)


def update(target: Target, op: str, bits: int, sem: str, scope: str, pointer: str) -> str:
    """A call of the vendor's assembly: "add" or "xchg" of i`bits` %value at `pointer`; gives the old word."""
    return target.update.format(op=op, bits=bits, sem=sem, scope=scope, pointer=pointer, register="r" if bits == 32 else "l",
                                word=target.updates[op].format(bits=bits))


def _bound(target: Target, bounded: bool, bits: int, n: str) -> dict:
    """The template fields that make a spin bounded, or leave it alone."""
    if not bounded:
        again = f"miss:\n{target.rest}  br label %spin\n" if target.rest else ""
        return dict(counted="", bound=again, miss="miss" if again else "spin")
    wide = bits == 64
    return dict(counted=_COUNTED, miss="miss", bound=_BOUND.format(
        rest=target.rest, widen="" if wide else _WIDEN, n=n, wanted="%value" if wide else "%wanted.wide",
        seen="%seen" if wide else "%seen.wide"))


def _families(target: Target, bounded: bool) -> str:
    signal = _SIGNAL if target.signals_itself else ""
    parts = [text.format(**_bound(target, bounded, 32, "1")) for text in (_LL_LOAD, _LL_LOAD_PAIR, _SF_TAKE_PAIR)]
    parts.append(_SF_GIVE_UP if bounded else _SF_IN_TIME)
    for scope_name, scope in (("gpu", target.device_scope), ("sys", "")):
        for semantic in abi.FENCE_SEMANTICS:
            parts.append(_FENCE.format(symbol=f"tdist_fence_{semantic}_{scope_name}", scope=scope, semantic=semantic,
                                       after_release="" if semantic == "acquire" else target.after_release))
        for bits in abi.BITS:
            width = dict(bits=bits, bytes=bits // 8, scope=scope)
            for op in abi.SIGNAL_OPS:
                release = _release(target, op, scope, bits)
                for name, text in (("notify_warp", _NOTIFY_WARP), ("signal", signal)):
                    parts.append(text.format(symbol=f"tdist_{name}_{op}_b{bits}_{scope_name}", release=release, **width))
            for cmp in abi.COMPARISONS:
                for semantic in abi.WAIT_SEMANTICS:
                    parts.append(_WAIT.format(
                        symbol=f"tdist_wait_{cmp}_b{bits}_{semantic}_{scope_name}",
                        compare=_COMPARE[cmp].format(bits=bits),
                        acquire=f"  fence {scope} acquire\n" if semantic == "acquire" else "",
                        after_wait=target.after_wait, **width, **_bound(target, bounded, bits, "%n")))
    return "".join(parts)


def render(vendor: str, bounded: bool = False) -> str:
    """Text of the device runtime of `vendor` ("nvidia" or "amd")."""
    language = hashlib.sha256()
    for source in sorted(_LANGUAGE.rglob("*.py")):
        language.update(source.read_bytes())
    found = target(vendor)
    states = replace(found.states, assembly={**found.states.assembly, **(found.bounded_assembly if bounded else {})})
    return "\n".join([states.line(), f"; triton_dist.language {language.hexdigest()}",
                      (_HERE.parent / vendor / "device.ll").read_text(), (_HERE / "common.ll").read_text(),
                      _families(found, bounded)])


@functools.cache
def library(vendor: str, bounded: bool = False) -> str:
    """Path of the device runtime, written unless it is there."""
    text = render(vendor, bounded)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cached(cache_dir() / "device", f"tdist_{vendor}{'_bounded' if bounded else ''}_{digest}.ll", text)
