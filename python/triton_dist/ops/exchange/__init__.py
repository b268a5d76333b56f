# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The collectives in which every rank sends something to every rank once: their op, their sizes, their kernels."""
