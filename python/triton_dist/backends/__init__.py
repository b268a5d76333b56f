# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Backends: each package implements runtime.backend.Backend and is found through its registry."""
