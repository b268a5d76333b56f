# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-to-all of as many rows as tensors on the device say: what brings tokens to their experts and back."""
