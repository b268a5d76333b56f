# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Host runtime: worlds, groups, the symmetric heap, workspaces, streams and the jit wrapper."""
