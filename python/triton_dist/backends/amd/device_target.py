# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What AMD's device runtime has beside device.ll."""
from triton_dist.backends.amd import rocshmem_functions
from triton_dist.backends.gpu.device_runtime import Target
from triton_dist.language._linked import Statement

TARGET = Target(
    device_scope='syncscope("agent")', cta_scope='syncscope("workgroup")',
    states=Statement("amd", rocshmem_functions.not_linked()),
    after_release="  call void @tdist_await_accesses()\n", after_wait="  call void @tdist_after_wait()\n",
    rest="  call void @tdist_rest()\n", signals_itself=True)
