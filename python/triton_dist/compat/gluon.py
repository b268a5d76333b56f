# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Private names of Gluon."""
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

__all__ = ["GluonASTSource", "GluonJITFunction"]
