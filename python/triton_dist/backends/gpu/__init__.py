# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the GPU vendors share: all but their driver, their part of the device runtime, and their tilings."""
