# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-to-alls of chunks for each rank and expert, whose sizes are on the device."""
