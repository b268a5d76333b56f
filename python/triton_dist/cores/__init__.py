# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of one architecture that are faster than the portable ones. A backend whose device runs them registers them."""
