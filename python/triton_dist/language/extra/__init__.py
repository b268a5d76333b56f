# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device functions beyond dl: libshmem_device, the SHMEM API."""
