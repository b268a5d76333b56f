# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The library that is linked into kernels while a process traces: bodies of `language/trace_abi.py`.

One lane of each warp writes its time to the slot of (program, event, lap), so of several warps the last one stays: it is the one
that others wait for. A store is not waited for. Lane, clock and program come from the vendor's device.ll.
"""
import functools
import hashlib
import re
from pathlib import Path

from triton_dist.language.trace_abi import CLOCK, EVENT, EVENTS, SYMBOL, WORDS
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.files import cached

_BACKENDS = Path(__file__).parents[1]
_NEEDED = ("tdist_lane", "tdist_clock_ns", "tdist_program_x")
_TEXT = f"""
%tdist.trace = type {{{{ i64, i32, i32 }}}}
@{SYMBOL} = addrspace(4) externally_initialized global %tdist.trace zeroinitializer, align 16

define i64 @{CLOCK}() alwaysinline nounwind {{{{
  %now = call i64 @tdist_clock_ns()
  ret i64 %now
}}}}

define i32 @{EVENT}(i32 %event, i32 %stop, i32 %lap, i32 %number) alwaysinline nounwind {{{{
entry:
  %lane = call i32 @tdist_lane()
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %look, label %done
look:
  %base = load i64, ptr addrspace(4) @{SYMBOL}, align 16
  %programs.at = getelementptr inbounds %tdist.trace, ptr addrspace(4) @{SYMBOL}, i32 0, i32 1
  %programs = load i32, ptr addrspace(4) %programs.at, align 8
  %laps.at = getelementptr inbounds %tdist.trace, ptr addrspace(4) @{SYMBOL}, i32 0, i32 2
  %laps = load i32, ptr addrspace(4) %laps.at, align 4
  %program = call i32 @tdist_program_x()
  %known = icmp ult i32 %program, %programs
  %kept = icmp ult i32 %lap, %laps
  %inside = and i1 %known, %kept
  br i1 %inside, label %write, label %done
write:
  %row = mul i32 %program, {{events}}
  %column = add i32 %row, %event
  %line = mul i32 %column, %laps
  %slot = add i32 %line, %lap
  %index = zext i32 %slot to i64
  %bytes = mul i64 %index, {{size}}
  %where = add i64 %base, %bytes
  %stop.wide = zext i32 %stop to i64
  %word = shl i64 %stop.wide, 3
  %to = add i64 %where, %word
  %time.at = inttoptr i64 %to to ptr addrspace(1)
  %now = call i64 @tdist_clock_ns()
  store volatile i64 %now, ptr addrspace(1) %time.at, align 8
  %starts = icmp eq i32 %stop, 0
  br i1 %starts, label %tell, label %done
tell:
  %third = add i64 %where, 16
  %number.at = inttoptr i64 %third to ptr addrspace(1)
  %number.wide = sext i32 %number to i64
  store volatile i64 %number.wide, ptr addrspace(1) %number.at, align 8
  br label %done
done:
  ret i32 0
}}}}
"""


def render(vendor: str) -> str:
    """Text of the library of `vendor` ("nvidia" or "amd")."""
    device = (_BACKENDS / vendor / "device.ll").read_text()
    own = [re.search(rf"^define internal \S+ @{name}\(.*?^}}\n", device, re.M | re.S)[0] for name in _NEEDED]
    called = set(re.findall(r"@(llvm\.[\w.]+)\(", "".join(own)))
    declared = [line for line in re.findall(r"^declare .*$", device, re.M) if re.search(r"@([\w.]+)\(", line)[1] in called]
    triple = re.search(r"^target triple.*$", device, re.M)[0]
    return "\n".join([triple, *declared, *own, _TEXT.format(events=len(EVENTS), size=8 * WORDS)])


@functools.cache
def library(vendor: str) -> str:
    """Path of the library, written unless it is there."""
    text = render(vendor)
    return cached(cache_dir() / "device", f"tdist_trace_{vendor}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.ll", text)
