# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""C sources that every library of kernels is built with: package data, copied beside the generated code."""
