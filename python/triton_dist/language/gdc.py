# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of one stream that overlap: programmatic dependent launch, named as in Triton's own extras.

A kernel that begins with gdc_wait may be launched while the kernel before it on the stream still runs. That hides its launch,
which is a good part of the time of a short kernel. Ask for it at the launch, kernel[grid](..., launch_pdl=True), as the ops of
this package do. The kernel before it must call gdc_launch_dependents; otherwise the launch waits for its end. Both functions
do nothing on GPUs without such launches, where the backend leaves the option out.
"""
from triton_dist.language._call import primitive


@primitive
def gdc_wait():
    """Waits until all kernels before this one on the stream have ended. What they have stored is then visible.

    Every thread of the program must call it before it touches anything that such a kernel may read or write.
    """
    return "tdist_gdc_wait", ()


@primitive
def gdc_launch_dependents():
    """Lets the next kernel on the stream start once every program of this one has called it or ended. It orders nothing."""
    return "tdist_gdc_launch_dependents", ()
