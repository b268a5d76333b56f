# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of language/float8.py and language/halves.py: an emulated device rounds by what all devices have."""
from triton_dist.backends.emulator.engine.registry import twin


@twin("float8.has_e4m3_word")
def has_e4m3_word() -> bool:
    """No instruction."""
    return False


@twin("halves.has_word_of")
def has_word_of(dtype) -> bool:
    """No instruction."""
    return False
