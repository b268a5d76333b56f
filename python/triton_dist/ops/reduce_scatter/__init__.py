# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Reduce-scatter: the sum of every rank's tensor, of which each rank keeps its rows."""
