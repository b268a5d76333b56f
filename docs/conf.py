# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Sphinx over docs/. Build with: python -m sphinx -W -b html docs docs/_build"""
import inspect

import triton_dist
import triton_dist.language
import triton_dist.language.extra.libshmem_device
from triton_dist.language._call import SELECT

project = "triton_dist"
copyright = "triton_dist contributors"     # noqa: A001 - Sphinx's name
release = triton_dist.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": "overlap kernels on stock Triton"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"


def _plain_functions() -> None:
    """Device functions are objects of Triton's; autodoc reads the Python functions behind them."""
    for module in (triton_dist.language, triton_dist.language.extra.libshmem_device):
        for name in module.__all__:
            value = getattr(module, name)
            value = getattr(value, "fn", value)
            if callable(value):
                value = inspect.unwrap(getattr(value, SELECT, value))
                value.__module__, value.__name__ = module.__name__, name
                setattr(module, name, value)


_plain_functions()
