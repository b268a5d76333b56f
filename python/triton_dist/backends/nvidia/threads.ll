; SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
; SPDX-License-Identifier: MIT
;
; Functions of single threads, the part that only NVIDIA has: indices, the clock, and shuffles in a warp. The rest is generated
; (gpu/thread_functions.py).

target triple = "nvptx64-nvidia-cuda"

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.laneid()
declare i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.up.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.down.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.vote.ballot.sync(i32, i1)

define i32 @tdist_simt_tid_x() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  ret i32 %id
}

define i32 @tdist_simt_tid_y() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  ret i32 %id
}

define i32 @tdist_simt_tid_z() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()
  ret i32 %id
}

define i32 @tdist_simt_lane() alwaysinline nounwind {
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  ret i32 %lane
}

define i32 @tdist_simt_sm() alwaysinline nounwind {
  %id = call i32 asm sideeffect "mov.u32 $0, %smid;", "=r"()
  ret i32 %id
}

define i64 @tdist_simt_clock() alwaysinline nounwind {
  %now = call i64 asm sideeffect "mov.u64 $0, %globaltimer;", "=l"()
  ret i64 %now
}

define i64 @tdist_simt_ballot(i32 %mask, i32 %predicate) alwaysinline convergent nounwind {
  %on = icmp ne i32 %predicate, 0
  %bits = call i32 @llvm.nvvm.vote.ballot.sync(i32 %mask, i1 %on)
  %wide = zext i32 %bits to i64
  ret i64 %wide
}

; The last operand: the highest lane that may be read, or for "up" the lowest.
define i32 @tdist_simt_shfl_idx(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %seen = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 %mask, i32 %value, i32 %other, i32 31)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_up(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %seen = call i32 @llvm.nvvm.shfl.sync.up.i32(i32 %mask, i32 %value, i32 %other, i32 0)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_down(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %seen = call i32 @llvm.nvvm.shfl.sync.down.i32(i32 %mask, i32 %value, i32 %other, i32 31)
  ret i32 %seen
}

define i32 @tdist_simt_shfl_xor(i32 %mask, i32 %value, i32 %other) alwaysinline convergent nounwind {
  %seen = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 %mask, i32 %value, i32 %other, i32 31)
  ret i32 %seen
}
