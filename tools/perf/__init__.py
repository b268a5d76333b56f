# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the project makes of its committed measurements: verdicts on its bars, pages and pictures."""
