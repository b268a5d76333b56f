# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core: warp-specialised GEMMs with TMA and wgmma, for sm_90 and the emulator."""
