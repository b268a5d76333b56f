# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twin of language/float8.py: an emulated device rounds by the integer arithmetic that all devices have."""
from triton_dist.backends.emulator.engine.registry import twin


@twin("float8.has_e4m3_word")
def has_e4m3_word() -> bool:
    """No instruction."""
    return False
