# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The checker for GPUs of several chiplets, such as an MI300X, whose barriers leave stores under way.

There a program's barrier orders its threads, but does not wait for their stores: a flag that one thread releases after it may
be seen before what other waves have stored. `dl.notify` and `dl.notify_each` drain the stores first, and take that way under
this detector. A stock release after `tl.debug_barrier()` is right on other GPUs and a race here.
"""
from triton_dist.checker.detector import Detector


class ChipletDetector(Detector):
    """Pass it to `check_kernel(..., detector=ChipletDetector)`.

    A plain store is in the L2 of its chiplet until a release of sufficient scope writes it back, so another program sees it only
    through a release after it: that is the rule of all detectors, and agent scope reaches no other GPU."""

    barriers_leave_stores = True

    def drained(self) -> None:
        thread = self.thread()
        thread.drained = thread.clk
        thread.step()

    def barrier(self) -> None:
        thread = self.thread()
        published = max(thread.fenced, thread.__dict__.get("drained", 0))
        super().barrier()
        if thread.split:
            thread.fenced = published
