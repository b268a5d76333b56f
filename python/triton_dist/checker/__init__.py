# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The checker: finds races, deadlocks and wrong scopes of distributed kernels on a CPU. docs/checker.md says how."""
from triton_dist.checker.faults import Fault
from triton_dist.checker.report import Report
from triton_dist.checker.run import check_kernel

__all__ = ["Fault", "Report", "check_kernel"]
