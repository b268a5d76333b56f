# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder's layers, by our ops and by what people use without them: `triton-dist bench model`."""
