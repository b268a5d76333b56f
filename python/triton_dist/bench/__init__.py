# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The benchmark: one measuring method for every figure, tables and pictures from its json.

Ranks measure (measure, problems, peers), rank 0 keeps (results, host) and shows (table, plot).
"""
