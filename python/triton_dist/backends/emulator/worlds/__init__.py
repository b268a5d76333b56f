# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Worlds: ranks as processes or as threads of one process, what they share, and how they meet."""
