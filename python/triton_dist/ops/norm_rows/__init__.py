# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bias, residual and a norm of rows that this rank has: what follows a collective or a product. Nothing is sent."""
