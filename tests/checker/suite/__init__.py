# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The labelled suite: small kernels, about half of them faulty, that a checker is measured by. See registry.py."""
