# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Measured and predicted times of the ways to run an op, and what is kept of them."""
