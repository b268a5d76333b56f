# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.language.extra.language_extra, which serve all GPUs."""
from triton_dist.language.extra.language_extra import *  # noqa: F403
