# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce: the sum of every rank's tensor, on every rank."""
