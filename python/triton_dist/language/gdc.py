# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of one stream that overlap: programmatic dependent launch, named as in triton.language.extra.cuda.

A kernel that calls gdc_wait may be launched while the one ahead of it still runs: prepared launches do so by themselves, others
with Triton's option `launch_pdl=True`. That hides the launch, some microseconds of a short kernel. Both calls do nothing on
GPUs that have no such launches (before sm_90, and AMD's), so a kernel may call them anywhere.
"""
from triton_dist.language._call import primitive


@primitive
def gdc_wait():
    """Waits until all kernels ahead on the stream have ended; what they have stored is visible then.

    Every thread of the program calls it, before it touches anything that a kernel ahead may read or write."""
    return "tdist_gdc_wait", ()


@primitive
def gdc_launch_dependents():
    """Lets the next kernel on the stream be launched as soon as every program has called this or ended. It orders nothing."""
    return "tdist_gdc_launch_dependents", ()
