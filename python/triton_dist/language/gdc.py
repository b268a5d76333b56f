# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of one stream that overlap: programmatic dependent launch, named as in triton.language.extra.cuda.

A kernel that begins by gdc_wait may be launched while the one ahead of it still runs, which hides its launch, a good part of
the time of a short kernel. Ask for it at its launch, kernel[grid](..., launch_pdl=True); the ops of this package do so
themselves. And let the kernel ahead call gdc_launch_dependents, else its end is awaited all the same. Both do nothing on GPUs
that have no such launches (before sm_90, and AMD's), and there the option is left out.
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
