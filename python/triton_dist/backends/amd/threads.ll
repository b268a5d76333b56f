; SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
; SPDX-License-Identifier: MIT
;
; Functions of single threads, the part that only AMD has: indices, the clock, and shuffles in a wave. The rest is generated
; (gpu/thread_functions.py).

target triple = "amdgcn-amd-amdhsa"

declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i32 @llvm.amdgcn.wavefrontsize()
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare i64 @llvm.readsteadycounter()

define i32 @tdist_simt_tid_x() alwaysinline nounwind {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  ret i32 %id
}

define i32 @tdist_simt_tid_y() alwaysinline nounwind {
  ret i32 0
}

define i32 @tdist_simt_tid_z() alwaysinline nounwind {
  ret i32 0
}

define i32 @tdist_simt_lane() alwaysinline nounwind {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  ret i32 %lane
}

; A compute unit has no number of its own that all generations tell alike.
define i32 @tdist_simt_sm() alwaysinline nounwind {
  ret i32 0
}

define i64 @tdist_simt_clock() alwaysinline nounwind {
  %ticks = call i64 @llvm.readsteadycounter()
  %ns = mul i64 %ticks, 10
  ret i64 %ns
}

define i64 @tdist_simt_ballot(i32 %mask, i32 %predicate) alwaysinline convergent nounwind {
  %on = icmp ne i32 %predicate, 0
  %bits = call i64 @llvm.amdgcn.ballot.i64(i1 %on)
  ret i64 %bits
}

define internal i32 @tdist_simt_read_lane(i32 %value, i32 %from) alwaysinline convergent nounwind {
  %lane = call i32 @tdist_simt_lane()
  %lanes = call i32 @llvm.amdgcn.wavefrontsize()
  %inside = icmp ult i32 %from, %lanes
  %source = select i1 %inside, i32 %from, i32 %lane
  %byte = shl i32 %source, 2
  %seen = call i32 @llvm.amdgcn.ds.bpermute(i32 %byte, i32 %value)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_idx(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %seen = call i32 @tdist_simt_read_lane(i32 %value, i32 %other)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_up(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %lane = call i32 @tdist_simt_lane()
  %from = sub i32 %lane, %other
  %seen = call i32 @tdist_simt_read_lane(i32 %value, i32 %from)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_down(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %lane = call i32 @tdist_simt_lane()
  %from = add i32 %lane, %other
  %seen = call i32 @tdist_simt_read_lane(i32 %value, i32 %from)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_xor(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %lane = call i32 @tdist_simt_lane()
  %from = xor i32 %lane, %other
  %seen = call i32 @tdist_simt_read_lane(i32 %value, i32 %from)
  ret i32 %seen
}
