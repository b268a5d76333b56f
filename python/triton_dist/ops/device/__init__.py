# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What kernels of several ops share: tiles, packets, self-flagged stores, reductions, boxes."""
