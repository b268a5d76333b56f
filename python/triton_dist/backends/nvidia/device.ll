; SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
; SPDX-License-Identifier: MIT
;
; Device runtime, the part that only NVIDIA has: lanes, the warp barrier, the clock, the program's index.

target triple = "nvptx64-nvidia-cuda"

declare i32 @llvm.nvvm.read.ptx.sreg.laneid()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @__nvvm_reflect(ptr)
@tdist_arch = internal constant [12 x i8] c"__CUDA_ARCH\00"

; Opaque, so that nothing built on it can be computed without the token; pure, so that it may move with its use.
define i32 @tdist_zero_after(i32 %token) alwaysinline nounwind {
  %zero = call i32 asm "mov.u32 $0, 0; // after $1", "=r,r"(i32 %token)
  ret i32 %zero
}

define internal i32 @tdist_lane() alwaysinline nounwind {
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  ret i32 %lane
}

define internal i32 @tdist_lanes() alwaysinline nounwind {
  ret i32 32
}

define internal void @tdist_lanes_sync() alwaysinline convergent nounwind {
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  ret void
}

; True in exactly one of the lanes that are here together.
define internal i1 @tdist_elect() alwaysinline convergent nounwind {
  %mask = call i32 asm sideeffect "activemask.b32 $0;", "=r"() convergent
  %first = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  %elected = icmp eq i32 %first, %lane
  ret i1 %elected
}

define internal i64 @tdist_clock_ns() alwaysinline nounwind {
  %now = call i64 asm sideeffect "mov.u64 $0, %globaltimer;", "=l"()
  ret i64 %now
}

define internal i32 @tdist_program_x() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  ret i32 %id
}

define internal i32 @tdist_program_y() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  ret i32 %id
}

define internal i32 @tdist_program_z() alwaysinline nounwind {
  %id = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
  ret i32 %id
}

; A number that is unique to each inlined copy: backends/gpu/wait_sites.py finds the line that it stands on.
define internal i32 @tdist_site() alwaysinline nounwind {
  %site = call i32 asm sideeffect "mov.u32 $0, ${:uid}; // tdist_site", "=r"()
  ret i32 %site
}

; Folded when a kernel is compiled for its architecture.
define internal i1 @tdist_launches_overlap() alwaysinline nounwind {
  %arch = call i32 @__nvvm_reflect(ptr @tdist_arch)
  %found = icmp sge i32 %arch, 900
  ret i1 %found
}

define i32 @tdist_gdc_wait() alwaysinline convergent nounwind {
entry:
  %overlap = call i1 @tdist_launches_overlap()
  br i1 %overlap, label %wait, label %done
wait:
  call void asm sideeffect "griddepcontrol.wait;", "~{memory}"() convergent
  br label %done
done:
  ret i32 0
}

define i32 @tdist_prefetch(i64 %address, i32 %pred) alwaysinline nounwind {
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %fetch, label %done
fetch:
  call void asm sideeffect "prefetch.global.L2 [$0];", "l"(i64 %address)
  br label %done
done:
  ret i32 0
}

define i32 @tdist_gdc_launch_dependents() alwaysinline convergent nounwind {
entry:
  %overlap = call i1 @tdist_launches_overlap()
  br i1 %overlap, label %launch, label %done
launch:
  call void asm sideeffect "griddepcontrol.launch_dependents;", ""() convergent
  br label %done
done:
  ret i32 0
}
