# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The engine: actors take turns in a fixed order, on streams; who observes them, and what is told of a hang."""
