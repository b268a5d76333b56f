# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The benchmark: one measuring method for every figure, tables and pictures from its json.

Ranks check and measure (problems, checks, measure), rank 0 makes rows (rows, stats), keeps (results, host) and shows them
(table, plot).
"""
