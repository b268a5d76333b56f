; SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
; SPDX-License-Identifier: MIT
;
; Device runtime, the part that only AMD has: lanes, the clock, the program's index, and how stores are released. Lanes of
; a wave run in lockstep, so the wave barrier only keeps the compiler from moving code across it.

target triple = "amdgcn-amd-amdhsa"

declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i32 @llvm.amdgcn.wavefrontsize()
declare void @llvm.amdgcn.wave.barrier()
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)
declare i64 @llvm.readsteadycounter()
declare void @llvm.amdgcn.s.sleep(i32)
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()

; 1000 * major + 100 * minor + stepping, a constant that Triton sets before it links this file: branches on it are folded.
@__oclc_ISA_version = external hidden addrspace(4) constant i32

; Returns once all loads and stores of the calling wave are done. Assembly, for two reasons. A barrier does not wait for a
; wave's stores. And LLVM 22 (Triton 3.6) may believe that nothing is under way after a write-back, and leave its own wait
; out; llvm-project#178316 mends that. It cannot leave out what it does not understand.
define internal void @tdist_await_accesses() alwaysinline nounwind {
entry:
  %isa = load i32, ptr addrspace(4) @__oclc_ISA_version, align 4
  %one.counter = icmp ult i32 %isa, 10000
  br i1 %one.counter, label %gfx9, label %later
gfx9:
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{memory}"()
  br label %done
later:
  %two.counters = icmp ult i32 %isa, 12000
  br i1 %two.counters, label %gfx10, label %gfx12
gfx10:
  call void asm sideeffect "s_waitcnt vmcnt(0)\0As_waitcnt_vscnt null, 0x0", "~{memory}"()
  br label %done
gfx12:
  call void asm sideeffect "s_wait_loadcnt 0x0\0As_wait_storecnt 0x0", "~{memory}"()
  br label %done
done:
  ret void
}

define i32 @tdist_drain() alwaysinline convergent nounwind {
  call void @tdist_await_accesses()
  ret i32 0
}

; True in the first thread of the program.
define internal i1 @tdist_is_first_thread() alwaysinline nounwind {
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %first = icmp eq i32 %thread, 0
  ret i1 %first
}

; Between two polls: 64 cycles in which the wave leaves its SIMD and the memory pipeline to others.
define internal void @tdist_rest() alwaysinline nounwind {
  call void @llvm.amdgcn.s.sleep(i32 1)
  ret void
}

; Ends every wait, so that a uniform load after it goes through the vector caches, which a fence drops, and not through the
; scalar cache, which no fence touches.
define internal void @tdist_after_wait() alwaysinline nounwind {
  call void asm sideeffect "", "~{memory}"()
  ret void
}

; Opaque, so that nothing built on it can be computed without the token; pure, so that it may move with its use.
; Scalar, so that addresses stay uniform and buffer instructions remain possible.
define i32 @tdist_zero_after(i32 %token) alwaysinline nounwind {
  %zero = call i32 asm "s_mov_b32 $0, 0 ; after $1", "=s,s"(i32 %token)
  ret i32 %zero
}

define internal i32 @tdist_lane() alwaysinline nounwind {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  ret i32 %lane
}

define internal i32 @tdist_lanes() alwaysinline nounwind {
  %lanes = call i32 @llvm.amdgcn.wavefrontsize()
  ret i32 %lanes
}

define internal void @tdist_lanes_sync() alwaysinline convergent nounwind {
  call void @llvm.amdgcn.wave.barrier()
  ret void
}

; True in exactly one of the lanes that are here together.
define internal i1 @tdist_elect() alwaysinline convergent nounwind {
  %lane = call i32 @tdist_lane()
  %first = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %lane)
  %elected = icmp eq i32 %first, %lane
  ret i1 %elected
}

; The steady counter of gfx9 runs at 100 MHz.
define internal i64 @tdist_clock_ns() alwaysinline nounwind {
  %ticks = call i64 @llvm.readsteadycounter()
  %now = mul i64 %ticks, 10
  ret i64 %now
}

define internal i32 @tdist_program_x() alwaysinline nounwind {
  %id = call i32 @llvm.amdgcn.workgroup.id.x()
  ret i32 %id
}

define internal i32 @tdist_program_y() alwaysinline nounwind {
  %id = call i32 @llvm.amdgcn.workgroup.id.y()
  ret i32 %id
}

define internal i32 @tdist_program_z() alwaysinline nounwind {
  %id = call i32 @llvm.amdgcn.workgroup.id.z()
  ret i32 %id
}

; A number that is unique to each inlined copy: backends/gpu/wait_sites.py finds the line that it stands on.
define internal i32 @tdist_site() alwaysinline nounwind {
  %site = call i32 asm sideeffect "s_mov_b32 $0, ${:uid} ; tdist_site", "=s"()
  ret i32 %site
}

; No instruction of the older targets brings a line into L2 alone.
define i32 @tdist_prefetch(i64 %address, i32 %pred) alwaysinline nounwind {
  ret i32 0
}

; Launches of one stream never overlap.
define i32 @tdist_gdc_wait() alwaysinline nounwind {
  ret i32 0
}

define i32 @tdist_gdc_launch_dependents() alwaysinline nounwind {
  ret i32 0
}
