# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients of the ops, by the ops themselves. What is here calls ops and plain torch only, so that graphs can hold it."""
