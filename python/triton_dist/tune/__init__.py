# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tuning of listed shapes into a table. The tuning itself is the ops' own (ops/_tune.py)."""
