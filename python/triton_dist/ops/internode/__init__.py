# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Collectives over several nodes in two dimensions: SHMEM between equal places of the nodes, loads and stores inside each."""
