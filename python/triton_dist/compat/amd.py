# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of Triton's AMD backend."""
from triton.backends.amd import compiler, driver

hip_runtime = driver._get_path_to_hip_runtime_dylib         # the path of the HIP library that Triton loads
HIPBackend = compiler.HIPBackend
