# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Memory: global and shared, descriptors over it, and the ways by which it reaches other hosts. Every access is checked."""
