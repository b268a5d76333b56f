# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tokens to the ranks that have their experts, under the first product of the experts' own tokens."""
