# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Compile tests run without a GPU. Kernels are cached for the session, so tests may ask for the same one again.

To run them under another Triton, put its site directory first on PYTHONPATH and set TRITON_CACHE_DIR to a fresh folder.
"""
import functools
import os

import pytest

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")     # Triton 3.9 warns when it is unset


@pytest.fixture(scope="session", autouse=True)
def _all_have_own_caches(own_caches):
    """So has every test of this folder."""


@pytest.fixture(scope="session")
def compiled(own_caches):
    """compile_kernel, remembering what it has compiled."""
    from compile_util import compile_kernel

    @functools.cache
    def remember(fn, signature, constexprs, target, options):
        return compile_kernel(fn, dict(signature), dict(constexprs), target, **dict(options))

    def compile_once(fn, signature, constexprs, target, **options):
        return remember(fn, tuple(signature.items()), tuple(constexprs.items()), target, tuple(sorted(options.items())))

    return compile_once
