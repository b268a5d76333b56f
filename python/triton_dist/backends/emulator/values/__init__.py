# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Values of kernels: element types, scalars and tensors, with the arithmetic of compiled code."""
