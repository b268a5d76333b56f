; SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
; SPDX-License-Identifier: MIT
;
; Device runtime, the part that is the same on every GPU. device_runtime.py joins it with the vendor's device.ll and
; with the generated families (wait, ll_load, notify_warp, fence). runtime/context.py documents both structs.
; Addresses are int64 and become global pointers (addrspace 1) at the access.

; rank, world size, kernel id, reserved, wait timeout ns, diagnostics address, barrier pad, 0, base of each world rank
%tdist.context = type { i32, i32, i32, i32, i64, i64, i64, i64, [64 x i64] }
@tdist_ctx = addrspace(4) externally_initialized global %tdist.context zeroinitializer, align 16

; valid, rank, kernel id, n | flag address, wanted, seen | program x, y, z, lane, site; 64 bytes apart
%tdist.record = type { i32, i32, i32, i32, i64, i64, i64, i32, i32, i32, i32, i32, i32 }

declare void @llvm.trap()

define i32 @tdist_true() alwaysinline nounwind {
  ret i32 1
}

define i32 @tdist_rank() alwaysinline nounwind {
  %rank = load i32, ptr addrspace(4) @tdist_ctx, align 16
  ret i32 %rank
}

define i32 @tdist_num_ranks() alwaysinline nounwind {
  %field = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 1
  %size = load i32, ptr addrspace(4) %field, align 4
  ret i32 %size
}

define i64 @tdist_barrier_pad() alwaysinline nounwind {
  %field = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 6
  %pad = load i64, ptr addrspace(4) %field, align 8
  ret i64 %pad
}

define i64 @tdist_symm_delta(i32 %rank) alwaysinline nounwind {
  %me = load i32, ptr addrspace(4) @tdist_ctx, align 16
  %mine = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 8, i32 %me
  %theirs = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 8, i32 %rank
  %from = load i64, ptr addrspace(4) %mine, align 8
  %to = load i64, ptr addrspace(4) %theirs, align 8
  %delta = sub i64 %to, %from
  ret i64 %delta
}

; A packet is one 64-bit word: data in the low half, flag in the high half.
define i32 @tdist_ll_store(i64 %address, i32 %data, i32 %flag, i32 %pred) alwaysinline nounwind {
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %store, label %done
store:
  %low = zext i32 %data to i64
  %wide = zext i32 %flag to i64
  %high = shl i64 %wide, 32
  %packet = or i64 %high, %low
  %p = inttoptr i64 %address to ptr addrspace(1)
  store atomic i64 %packet, ptr addrspace(1) %p monotonic, align 8
  br label %done
done:
  ret i32 0
}

; Two adjacent packets in one access. Volatile, since no target has 16-byte atomics: both vendors' hardware keeps each aligned
; 8-byte half whole, and volatile means relaxed and system scope there.
define i32 @tdist_ll_store_pair(i64 %address, i64 %data, i32 %flag, i32 %pred) alwaysinline nounwind {
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %store, label %done
store:
  %low = trunc i64 %data to i32
  %shifted = lshr i64 %data, 32
  %high = trunc i64 %shifted to i32
  %v0 = insertelement <4 x i32> poison, i32 %low, i32 0
  %v1 = insertelement <4 x i32> %v0, i32 %flag, i32 1
  %v2 = insertelement <4 x i32> %v1, i32 %high, i32 2
  %pair = insertelement <4 x i32> %v2, i32 %flag, i32 3
  %p = inttoptr i64 %address to ptr addrspace(1)
  store volatile <4 x i32> %pair, ptr addrspace(1) %p, align 16
  br label %done
done:
  ret i32 0
}

; Self-flagged words: each 32-bit word arrives whole, and is not 0. Volatile as above.
define i32 @tdist_sf_store(i64 %address, i32 %a, i32 %b, i32 %c, i32 %d, i32 %pred) alwaysinline nounwind {
entry:
  %on = icmp ne i32 %pred, 0
  br i1 %on, label %store, label %done
store:
  %v0 = insertelement <4 x i32> poison, i32 %a, i32 0
  %v1 = insertelement <4 x i32> %v0, i32 %b, i32 1
  %v2 = insertelement <4 x i32> %v1, i32 %c, i32 2
  %words = insertelement <4 x i32> %v2, i32 %d, i32 3
  %p = inttoptr i64 %address to ptr addrspace(1)
  store volatile <4 x i32> %words, ptr addrspace(1) %p, align 16
  br label %done
done:
  ret i32 0
}

; True once a bounded wait that began at %start has used up the context's timeout. Timeout 0 wraps: never.
define internal i1 @tdist_expired(i64 %start) alwaysinline nounwind {
  %field = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 4
  %timeout = load i64, ptr addrspace(4) %field, align 8
  %limit = sub i64 %timeout, 1
  %now = call i64 @tdist_clock_ns()
  %spent = sub i64 %now, %start
  %expired = icmp ugt i64 %spent, %limit
  ret i1 %expired
}

; One of the lanes that expired together writes a record, unless its slot is taken, and traps some seconds later: until
; then other programs and ranks can record too, and hosts can read. The others return and are stopped by the trap.
define internal void @tdist_give_up(i32 %n, i64 %flag, i64 %wanted, i64 %seen, i32 %site) alwaysinline convergent nounwind {
entry:
  %elected = call i1 @tdist_elect()
  br i1 %elected, label %look, label %others
look:
  %diag.field = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 5
  %diag = load i64, ptr addrspace(4) %diag.field, align 8
  %none = icmp eq i64 %diag, 0
  br i1 %none, label %stop, label %find
find:
  %x = call i32 @tdist_program_x()
  %y = call i32 @tdist_program_y()
  %z = call i32 @tdist_program_z()
  %y8 = shl i32 %y, 3
  %z32 = shl i32 %z, 5
  %xy = add i32 %x, %y8
  %xyz = add i32 %xy, %z32
  %slot = and i32 %xyz, 63
  %table = inttoptr i64 %diag to ptr addrspace(1)
  %r = getelementptr inbounds %tdist.record, ptr addrspace(1) %table, i32 %slot
  %valid = load atomic i32, ptr addrspace(1) %r monotonic, align 8
  %taken = icmp ne i32 %valid, 0
  br i1 %taken, label %stop, label %record
record:
  %rank = call i32 @tdist_rank()
  %kernel.field = getelementptr inbounds %tdist.context, ptr addrspace(4) @tdist_ctx, i32 0, i32 2
  %kernel = load i32, ptr addrspace(4) %kernel.field, align 8
  %lane = call i32 @tdist_lane()
  %r.rank = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 1
  %r.kernel = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 2
  %r.n = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 3
  %r.flag = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 4
  %r.wanted = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 5
  %r.seen = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 6
  %r.x = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 7
  %r.y = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 8
  %r.z = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 9
  %r.lane = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 10
  %r.site = getelementptr inbounds %tdist.record, ptr addrspace(1) %r, i32 0, i32 11
  store volatile i32 %rank, ptr addrspace(1) %r.rank, align 4
  store volatile i32 %kernel, ptr addrspace(1) %r.kernel, align 4
  store volatile i32 %n, ptr addrspace(1) %r.n, align 4
  store volatile i64 %flag, ptr addrspace(1) %r.flag, align 8
  store volatile i64 %wanted, ptr addrspace(1) %r.wanted, align 8
  store volatile i64 %seen, ptr addrspace(1) %r.seen, align 8
  store volatile i32 %x, ptr addrspace(1) %r.x, align 4
  store volatile i32 %y, ptr addrspace(1) %r.y, align 4
  store volatile i32 %z, ptr addrspace(1) %r.z, align 4
  store volatile i32 %lane, ptr addrspace(1) %r.lane, align 4
  store volatile i32 %site, ptr addrspace(1) %r.site, align 4
  %released = call i32 @tdist_fence_release_sys()
  store atomic i32 1, ptr addrspace(1) %r monotonic, align 8
  fence seq_cst
  br label %stop
stop:
  %given.up = call i64 @tdist_clock_ns()
  br label %linger
linger:
  %now = call i64 @tdist_clock_ns()
  %lingered = sub i64 %now, %given.up
  %stay = icmp ult i64 %lingered, 4000000000
  br i1 %stay, label %linger, label %trap
trap:
  call void @llvm.trap()
  br label %others
others:
  ret void
}
